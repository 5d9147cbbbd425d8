"""Predictions: when the actors of a graph would fire, if their chunks took given times."""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import replace
from itertools import count

from whaleish.runtime.actor import Actor, make_actors
from whaleish.runtime.bus import DirectBus
from whaleish.runtime.check import check
from whaleish.runtime.graph import ActorGraph
from whaleish.runtime.register import Register
from whaleish.runtime.spec import EACH
from whaleish.runtime.trace import Event, Trace
from whaleish.runtime.turns import Turns


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
    """One run in simulated time.

    Attributes:
      most: for each actor the most registers that were taken at once.
    """

    def __init__(self, graph: ActorGraph, seconds: Mapping[str, float]) -> None:
        self.graph, self.seconds, self.trace, self.bus = graph, seconds, Trace(), DirectBus()
        self.actors = make_actors(graph)
        self.turns = {queue.name: Turns(queue, self.actors.values()) for queue in graph.queues}
        self.begun: dict[str, tuple[Register, float]] = {}
        self.busy: set[str] = set()
        self.most = dict.fromkeys(self.actors, 0)
        self._ends: list[tuple[float, int, tuple[str, ...]]] = []
        self._serial = count()
        now = 0.0
        self._begin(now)
        while self._ends:
            now = self._ends[0][0]
            while self._ends and self._ends[0][0] <= now * (1 + 1e-12):  # equal, but for rounding
                for name in heapq.heappop(self._ends)[2]:
                    self._end(self.actors[name], now)
            self._begin(now)

    def _begin(self, now: float) -> None:
        for queue, turns in self.turns.items():
            actor = turns.choose() if queue not in self.busy else None
            if actor is None:
                continue
            self.busy.add(queue)
            self.begun[actor.name] = actor.begin(), now
            self.most[actor.name] = max(self.most[actor.name], actor.spec.registers - len(actor.free))
            together = self.graph.meets.get(actor.name, (actor.name,))
            if all(name in self.begun for name in together):
                end = now + max(self.seconds.get(name, 0.0) for name in together)
                heapq.heappush(self._ends, (end, next(self._serial), together))

    def _end(self, actor: Actor, now: float) -> None:
        register, begin = self.begun.pop(actor.name)
        name, kind, process = actor.name, self.graph.kind(actor.name), self.graph.queue_of[actor.name].process
        number = actor.fired if actor.spec.phase == EACH else None
        self.trace.add(Event(name, actor.queue, process, number, begin, now, 0, kind))
        self.busy.discard(actor.queue)
        actor.finish(register, (), self.bus)
