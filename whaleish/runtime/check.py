"""The check before running: would the actors, with their registers and orders, wait for each other for ever?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from whaleish.runtime.actor import Actor
from whaleish.runtime.graph import ActorGraph
from whaleish.runtime.rehearsal import Rehearsal
from whaleish.runtime.spec import EACH


class Wait(NamedTuple):
    """Somebody who waits.

    Attributes:
      actor, number: which would fire, and the number of that firing.
      on: the actor that it waits for.
      why: what it waits for, as text.
      remedy: what would end this wait, as text.
      lacks_register: whether one more register of the actor's own would.
    """

    actor: str
    number: int
    on: str
    why: str
    remedy: str = ""
    lacks_register: bool = False


class DeadlockError(ValueError):
    """Actors would wait for each other for ever. `cycle` has who waits for whom, the last for the first."""

    def __init__(self, message: str, cycle: tuple[Wait, ...]) -> None:
        super().__init__(message)
        self.cycle = cycle


def check(graph: ActorGraph) -> None:
    """Runs the actors of all processes without their chunks, and raises if some cannot finish.

    One run speaks for all. Whether an actor can fire changes only from no to yes until it does, for no other actor can
    take its inputs or its registers; where an order is kept, it is the same in every run; and an actor that waits for
    others within a firing holds up nobody whose turn could come before (`ActorGraph` sees to that). So which firing
    goes first decides when things happen, but not whether they do.

    Raises:
      DeadlockError: names the actors in a shortest cycle, and what would break it.
    """
    run = Rehearsal(graph)
    while _fire_all(run):
        pass
    waits = {name: list(_waits(run, actor)) for name, actor in run.actors.items() if actor.fired < actor.firings}
    if waits:
        cycle = _shortest_cycle(waits)
        lines = [f"  {_text(graph, wait.actor, wait.number)} waits for {wait.why}" for wait in cycle]
        remedies = " or ".join(dict.fromkeys(wait.remedy for wait in cycle if wait.remedy))
        raise DeadlockError(
            "these actors would wait for each other for ever:\n"
            + "\n".join(lines)
            + "\nTo break the circle, "
            + (remedies or "let one of them not read, directly or through others, what it makes itself"),
            cycle,
        )


def with_enough_registers(graph: ActorGraph) -> ActorGraph:
    """The same actors with more registers, as few as make the check content.

    No actor gets fewer than it has. With these the orders of queues can be kept; `with_room` gives as many as it takes
    to keep them without delay.

    Raises:
      DeadlockError: there is a circle that no registers break.
    """
    first = graph
    while (error := _deadlock(graph)) is not None:
        short = next((wait.actor for wait in error.cycle if wait.lacks_register), None)
        if short is None:
            raise error
        graph = _with_more(graph, short, 1)
    # Of several that lack one in a circle, the first was taken; with what others got since it may have too many.
    for spec in first.actors:
        while graph.by_name[spec.name].registers > spec.registers:
            fewer = _with_more(graph, spec.name, -1)
            if _deadlock(fewer) is not None:
                break
            graph = fewer
    return graph


def _fire_all(run: Rehearsal) -> bool:
    """Fires what can fire now; whether anything did."""
    fired = False
    for actor in run.begin():
        for each in run.together(actor):
            run.end(each)
            fired = True
    return fired


def _deadlock(graph: ActorGraph) -> DeadlockError | None:
    try:
        check(graph)
    except DeadlockError as error:
        return error
    return None


def _with_more(graph: ActorGraph, name: str, more: int) -> ActorGraph:
    actors = (replace(s, registers=s.registers + more) if s.name == name else s for s in graph.actors)
    return replace(graph, actors=tuple(actors))


def _waits(run: Rehearsal, actor: Actor) -> Iterator[Wait]:
    """All that keeps an actor from its next firing."""
    name, number = actor.name, actor.fired
    if name in run.begun:
        for other in run.graph.meets[name]:
            if other not in run.begun:
                yield Wait(name, number, other, f"{other!r}, which has to begin at the same time")
        return
    for port in actor.ports:
        if len(port.filled) < port.edge.needs:
            producer = port.edge.producer
            made = f"{port.edge.needs} outputs" if port.edge.needs > 1 else "an output"
            yield Wait(name, number, producer, f"{made} of {producer!r}")
    if not actor.free:
        yield _wait_for_register(run.graph, actor)
    first = run.rotas[actor.queue].must_be
    if first not in (None, actor):
        assert first is not None
        why = f"its turn, as queue {actor.queue!r} is at {_text(run.graph, first.name, first.fired)}"
        yield Wait(name, number, first.name, why, f"change the order of queue {actor.queue!r}")
    elif actor.queue in run.busy:
        other = run.busy[actor.queue].name
        yield Wait(name, number, other, f"its turn, as queue {actor.queue!r} is busy with {other!r}")


def _wait_for_register(graph: ActorGraph, actor: Actor) -> Wait:
    """Who has not yet read what the actor made first of what it still holds."""
    held = [
        (firing, consumer.name, edge.needs)
        for consumer, number, edge in actor.consumers
        for _, firing in consumer.ports[number].filled
    ]
    # What it has begun to make, and others wait for it to go on, is held as well, but read by nobody yet.
    firing, reader, needs = min(held)
    count = actor.spec.registers
    more = f"give {actor.name!r} more registers than {count}" + (f": {reader!r} reads {needs}" if needs > 1 else "")
    what = "its register" if count == 1 else f"one of its {count} registers"
    why = f"{what}, as {reader!r} has not read {_text(graph, actor.name, firing)}"
    return Wait(actor.name, actor.fired, reader, why, more, lacks_register=True)


def _text(graph: ActorGraph, actor: str, number: int) -> str:
    return f"{actor!r} at micro-batch {number}" if graph.by_name[actor].phase == EACH else repr(actor)


def _shortest_cycle(waits: dict[str, list[Wait]]) -> tuple[Wait, ...]:
    """Who waits for whom in a circle. Everybody waits for somebody who waits, so there is one."""
    best: tuple[Wait, ...] = ()
    for start in waits:
        paths: list[tuple[Wait, ...]] = [(wait,) for wait in waits[start]]
        seen: set[str] = set()
        for path in paths:  # grows: breadth first
            if path[-1].on == start:
                best = path if not best or len(path) < len(best) else best
                break
            if path[-1].on not in seen:
                seen.add(path[-1].on)
                paths += [(*path, wait) for wait in waits[path[-1].on]]
    return best
