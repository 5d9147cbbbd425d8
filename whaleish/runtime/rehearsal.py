"""The rehearsal: all actors of all processes, fired in one thread and without their chunks."""

from __future__ import annotations

from collections.abc import Iterator

from whaleish.runtime.actor import Actor, make_actors
from whaleish.runtime.bus import DirectBus
from whaleish.runtime.graph import ActorGraph
from whaleish.runtime.register import Register
from whaleish.runtime.rota import Rota


class Rehearsal:
    """One run in which whoever goes through it says when firings end.

    Attributes:
      begun: the register that is being filled, by the name of each actor that is in the middle of a firing.
      busy: for each queue on which one is that actor.
    """

    def __init__(self, graph: ActorGraph) -> None:
        self.graph, self.actors = graph, make_actors(graph)
        self.rotas = {queue.name: Rota(queue, self.actors.values()) for queue in graph.queues}
        self.begun: dict[str, Register] = {}
        self.busy: dict[str, Actor] = {}
        self._bus = DirectBus()

    def begin(self) -> Iterator[Actor]:
        """Lets every queue that is not busy begin what it can, and goes on with it if that has ended meanwhile."""
        for queue, rota in self.rotas.items():
            while queue not in self.busy and (actor := rota.choose()) is not None:
                self.begun[actor.name], self.busy[queue] = actor.begin(), actor
                yield actor

    def together(self, actor: Actor) -> tuple[Actor, ...]:
        """All who end a firing with an actor that has begun one; nobody as long as one of them has yet to begin."""
        names = self.graph.meets.get(actor.name, (actor.name,))
        return tuple(self.actors[name] for name in names) if all(name in self.begun for name in names) else ()

    def end(self, actor: Actor) -> None:
        del self.busy[actor.queue]
        actor.finish(self.begun.pop(actor.name), (), self._bus)
