"""Predictions: when the actors of a graph would fire, if their chunks took given times."""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import replace
from itertools import count

from whaleish.runtime.actor import Actor
from whaleish.runtime.check import check
from whaleish.runtime.graph import ActorGraph
from whaleish.runtime.rehearsal import Rehearsal
from whaleish.runtime.spec import EACH
from whaleish.runtime.trace import Event, Trace


def predict(graph: ActorGraph, seconds: Mapping[str, float]) -> Trace:
    """The trace of a run in which every firing of an actor takes so long, and nothing else takes any time.

    Args:
      seconds: by actor; 0 for those left out. The firings of a group begin together, and take as long as the longest;
        so do both ends of a transfer.

    Raises:
      DeadlockError: see `check`.
    """
    check(graph)
    return _Clock(graph, seconds).trace


def with_room(graph: ActorGraph, seconds: Mapping[str, float]) -> ActorGraph:
    """The same actors with as many registers as it takes to keep the orders of queues without ever waiting for one.

    A register is taken while its firing goes on and while those who read it do. So where an actor fires again and again
    it takes two to keep it and its reader busy, though one is enough to get through.
    """
    actors = tuple(replace(spec, registers=graph.firings(spec.name)) for spec in graph.actors)
    queues = tuple(replace(queue, ordered=queue.ordered or bool(queue.order)) for queue in graph.queues)
    free = replace(graph, actors=actors, queues=queues)
    check(free)
    most = _Clock(free, seconds).most
    return replace(graph, actors=tuple(replace(spec, registers=most[spec.name]) for spec in graph.actors))


class _Clock:
    """One rehearsal in simulated time.

    Attributes:
      most: for each actor the most registers that were taken at once.
    """

    def __init__(self, graph: ActorGraph, seconds: Mapping[str, float]) -> None:
        self.graph, self.seconds, self.trace, self.run = graph, seconds, Trace(), Rehearsal(graph)
        self.most = dict.fromkeys(graph.by_name, 0)
        self._begins: dict[str, float] = {}
        self._ends: list[tuple[float, int, tuple[Actor, ...]]] = []
        self._serial = count()
        now = 0.0
        self._begin(now)
        while self._ends:
            now = self._ends[0][0]
            while self._ends and self._ends[0][0] <= now * (1 + 1e-12):  # equal, but for rounding
                for actor in heapq.heappop(self._ends)[2]:
                    self._end(actor, now)
            self._begin(now)

    def _begin(self, now: float) -> None:
        for actor in self.run.begin():
            self._begins[actor.name] = now
            self.most[actor.name] = max(self.most[actor.name], actor.spec.registers - len(actor.free))
            if together := self.run.together(actor):
                end = now + max(self.seconds.get(each.name, 0.0) for each in together)
                heapq.heappush(self._ends, (end, next(self._serial), together))

    def _end(self, actor: Actor, now: float) -> None:
        name, kind, process = actor.name, self.graph.kind(actor.name), self.graph.queue_of[actor.name].process
        number = actor.fired if actor.spec.phase == EACH else None
        self.trace.add(Event(name, actor.queue, process, number, self._begins.pop(name), now, 0, kind))
        self.run.end(actor)
