"""What is wrong with an actor graph, apart from deadlocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from whaleish.runtime.spec import AFTER, BEFORE, EACH, ActorSpec, Feed, Firing, Queue, Read

if TYPE_CHECKING:
    from whaleish.runtime.graph import ActorGraph

_ORDER = {BEFORE: 0, EACH: 1, AFTER: 2}


def find_problems(graph: ActorGraph) -> Iterator[str]:
    """All that is wrong; of what is named twice or nowhere, nothing more."""
    names = Counter(spec.name for spec in graph.actors)
    queues = Counter(queue.name for queue in graph.queues)
    first = [
        f"there are {n} {kind} {name!r}"
        for kind, counter in (("actors", names), ("queues", queues))
        for name, n in counter.items()
        if n > 1
    ]
    first += [
        f"{spec.name!r} is on queue {spec.queue!r}, which is none of {', '.join(map(repr, queues))}"
        for spec in graph.actors
        if spec.queue not in queues
    ]
    for spec in graph.actors:
        others = [read.actor for read in spec.inputs if isinstance(read, Read)] + [spec.receives or spec.name]
        first += [f"{spec.name!r} reads from {other!r}, which is no actor" for other in others if other not in names]
    first += [f"{name!r} of a group is no actor" for group in graph.groups for name in group if name not in names]
    first += [f"the result {read.actor!r} is no actor" for read in graph.results if read.actor not in names]
    first += [
        f"{spec.name!r} is of phase {spec.phase!r}; phases are {BEFORE!r}, {EACH!r} and {AFTER!r}"
        for spec in graph.actors
        if spec.phase not in _ORDER
    ]
    if graph.micro_batches < 1:
        first.append(f"there are {graph.micro_batches} micro-batches; there is at least one")
    yield from first
    if first:
        return
    for spec in graph.actors:
        yield from _of_actor(graph, spec)
    yield from _of_groups(graph)
    rates: dict[str, set[int]] = {}
    for spec in graph.actors:
        for read in spec.inputs:
            if isinstance(read, Feed):
                rates.setdefault(read.name, set()).add(graph.firings(spec.name))
    for name, counts in rates.items():
        if len(counts) > 1:
            yield f"the feed {name!r} is read by actors that fire once and by others; give it two names"
    for queue in graph.queues:
        yield from _of_queue(graph, queue)
    for read in graph.results:
        if read.every:
            yield f"the result {read.actor!r} has every=True; all values of a result are returned anyway"
        if read.actor in graph.receiver_of:
            yield f"the result {read.actor!r} sends, and has no outputs"


def _of_actor(graph: ActorGraph, spec: ActorSpec) -> Iterator[str]:
    if spec.registers < 1:
        yield f"{spec.name!r} has {spec.registers} registers; it needs at least one"
    for read in spec.inputs:
        if not isinstance(read, Read):
            continue
        producer = graph.by_name[read.actor]
        if _ORDER[producer.phase] > _ORDER[spec.phase]:
            yield f"{spec.name!r} ({spec.phase}) reads from {read.actor!r}, which fires later ({producer.phase})"
        if read.every and (producer.phase, spec.phase) != (EACH, AFTER):
            yield f"{spec.name!r} reads every value of {read.actor!r}, but not once after the micro-batches"
        if read.actor in graph.receiver_of:
            yield f"{spec.name!r} reads from {read.actor!r}, which sends; read from {graph.receiver_of[read.actor]!r}"
        if graph.queue_of[read.actor].process != graph.queue_of[spec.name].process:
            yield f"{spec.name!r} reads from {read.actor!r} in another process; put a transfer between them"
    if spec.receives is not None:
        if spec.inputs:
            yield f"{spec.name!r} receives, and so has no inputs of its own"
        if graph.by_name[spec.receives].receives is not None or spec.receives == spec.name:
            yield f"{spec.name!r} receives from {spec.receives!r}, which receives itself"
        if graph.by_name[spec.receives].phase != spec.phase:
            yield f"{spec.name!r} and {spec.receives!r}, the ends of a transfer, differ in phase"
        if graph.receiver_of[spec.receives] != spec.name:
            other = graph.receiver_of[spec.receives]
            yield f"{spec.receives!r} sends to {spec.name!r} and {other!r}; give each a sender of its own"


def _of_groups(graph: ActorGraph) -> Iterator[str]:
    members = Counter(name for group in graph.groups for name in group)
    for name, times in members.items():
        if times > 1:
            yield f"{name!r} is in {times} groups"
        if name in graph.receiver_of or graph.by_name[name].receives is not None:
            yield f"{name!r} is in a group, and an end of a transfer"
    for group in graph.groups:
        if len({graph.by_name[name].phase for name in group}) > 1:
            yield f"the group {', '.join(group)} has different phases"
        if len({graph.by_name[name].queue for name in group}) < len(group):
            yield f"the group {', '.join(group)} has two on one queue, which would wait for each other for ever"


def _of_queue(graph: ActorGraph, queue: Queue) -> Iterator[str]:
    actors = [spec.name for spec in graph.actors if spec.queue == queue.name]
    if queue.ordered or queue.order:
        wanted = [Firing(name, number) for name in actors for number in range(graph.firings(name))]
        for firing, times in (Counter(queue.order) - Counter(wanted)).items():
            yield f"the order of queue {queue.name!r} has {_text(firing)} {times} times too often"
        for firing in Counter(wanted) - Counter(queue.order):
            yield f"the order of queue {queue.name!r} lacks {_text(firing)}"
        for name in actors:
            numbers = [firing.number for firing in queue.order if firing.actor == name]
            if numbers != sorted(numbers):
                yield f"the order of queue {queue.name!r} has {name!r} at {numbers}; its firings go upwards"
    if not queue.ordered and len(actors) > 1:
        for name in actors:
            if name in graph.meets:
                others = ", ".join(repr(other) for other in graph.meets[name] if other != name)
                yield (
                    f"{name!r} waits for {others} within a firing, so it holds up all others on queue {queue.name!r}; "
                    "make the queue ordered, or give it one of its own"
                )


def _text(firing: Firing) -> str:
    return f"{firing.actor!r} at {firing.number}"
