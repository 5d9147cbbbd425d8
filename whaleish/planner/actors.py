"""Actors: which of them carry out a step in chunks, in which order, and how many registers each has."""

from __future__ import annotations

from collections.abc import Sequence

from whaleish.planner.chunks import Chunk, Chunks, Key
from whaleish.planner.plan import Plan
from whaleish.runtime import (
    AFTER,
    BEFORE,
    EACH,
    ActorGraph,
    ActorSpec,
    Feed,
    Firing,
    Queue,
    Read,
    firing_order,
    with_room,
)
from whaleish.schedule import Action, Schedule, make_schedule

_TURNS = {"F": 0, "B": 1, "W": 2}

DONE = 0
"""The output of every chunk that holds nothing, for those who only wait for it; what it gives follows."""


def feed_of(argument: int, phase: str) -> str:
    """The name under which a chunk of a phase is fed an argument of the step."""
    return f"argument {argument} {'of each micro-batch' if phase == EACH else 'once'}"


def make_actors(chunks: Chunks, plan: Plan) -> ActorGraph:
    """An actor for each chunk, named after it, and a queue for each group of devices."""
    assert plan.pipelining is not None
    stages = plan.pipelining
    micro_batches = next((axis.size for axis in plan.mesh.axes if axis.time), 1)
    groups = list(dict.fromkeys(mesh.devices for mesh in stages.meshes))
    group_of = [groups.index(mesh.devices) for mesh in stages.meshes]
    schedule = make_schedule(stages.schedule, len(stages.meshes), micro_batches) if stages.schedule else None
    actors = tuple(
        ActorSpec(
            str(chunk.key),
            _queue(group_of[chunk.key.stage]),
            inputs=(
                *(Feed(feed_of(argument, chunk.key.phase)) for argument in chunk.arguments),
                *(Read(str(key), 1 + number) for key, number in chunk.takes),
                *(Read(str(key), DONE) for key in chunk.waits),
            ),
            phase=chunk.key.phase,
            stage=chunk.key.stage,
            source=_source(chunk),
        )
        for chunk in chunks.all
    )
    queues = tuple(
        Queue(_queue(group), _order(chunks.all, [s for s, own in enumerate(group_of) if own == group], schedule))
        for group in range(len(groups))
    )
    results = tuple(dict.fromkeys(Read(str(key), 1 + number) for key, number in filter(None, chunks.outputs)))
    graph = ActorGraph(actors, queues, micro_batches, results=results)
    return with_room(graph, {spec.name: 2.0 if spec.name.startswith("B") else 1.0 for spec in actors})


def _queue(group: int) -> str:
    return f"devices {group}"


def _source(chunk: Chunk) -> str:
    """The first of the user's lines in a chunk."""
    return next(filter(None, map(chunk.graph.source, range(len(chunk.graph.ops)))), "")


def _order(chunks: Sequence[Chunk], stages: Sequence[int], schedule: Schedule | None) -> tuple[Firing, ...]:
    """In which order the chunks of some stages fire, which share one group of devices."""
    own = [chunk.key for chunk in chunks if chunk.key.stage in stages]
    before, after = ([str(key) for key in own if key.phase == phase] for phase in (BEFORE, AFTER))
    if schedule is None:
        return firing_order((), lambda _: (), before, after)
    there = set(own)

    def actors(action: Action) -> list[str]:
        key = Key(EACH, action.stage, _TURNS[action.kind])
        return [str(key)] if key in there else []

    return firing_order(schedule.computes(schedule.places[stages[0]]), actors, before, after)
