"""Actors: they fire when every input is filled and a register is free. Nothing else decides.

        producer                       consumer
        out -= 1    ── Produced ──▶    in += 1           the register's ref is the number of its consumers
        ref -= 1    ◀── Consumed ──    in -= 1           at 0 the register is free: out += 1

After OneFlow (Yuan et al., 2021, arXiv:2110.15032), section 4.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from whaleish.runtime.bus import Bus, Consumed, Produced
from whaleish.runtime.graph import ActorGraph
from whaleish.runtime.register import Register, RegisterError
from whaleish.runtime.spec import ActorSpec, Edge, Feed, Read


class Port:
    """Where an actor gets registers of one producer.

    Attributes:
      filled: registers that wait to be read, each with the firing that filled it, the oldest first.
    """

    __slots__ = ("edge", "filled", "producer")

    def __init__(self, edge: Edge, producer: Actor) -> None:
        self.edge, self.producer = edge, producer
        self.filled: deque[tuple[Register, int]] = deque()


class Actor:
    """The state of an actor during a run.

    Attributes:
      fired: how often it has fired.
      ports: one for each edge to it; `in` of the protocol is the number of registers in each.
      free: registers that hold nothing; `out` of the protocol is their number.
      consumers: (actor, number of its port, edge) for each edge from it.

    All of it belongs to the thread of the actor's queue.
    """

    def __init__(self, spec: ActorSpec, firings: int) -> None:
        self.spec, self.name, self.queue, self.firings = spec, spec.name, spec.queue, firings
        self.fired = 0
        self.ports: list[Port] = []
        self.consumers: list[tuple[Actor, int, Edge]] = []
        self.free = deque(Register(spec.name, slot) for slot in range(spec.registers))
        self._inputs: list[tuple[int, Read | Feed]] = []

    def connect(self, graph: ActorGraph, actors: Mapping[str, Actor]) -> None:
        """Makes its ports."""
        edges = graph.edges(self.name)
        for number, edge in enumerate(edges):
            producer = actors[edge.producer]
            self.ports.append(Port(edge, producer))
            producer.consumers.append((self, number, edge))
        for read in self.spec.inputs:
            self._inputs.append((edges.index(graph.edge(read, self.name)) if isinstance(read, Read) else -1, read))

    @property
    def is_done(self) -> bool:
        """Whether it has fired as often as it is to, and all it made has been read."""
        return self.fired == self.firings and len(self.free) == self.spec.registers

    def is_ready(self) -> bool:
        if self.fired == self.firings or not self.free:
            return False
        return all(len(port.filled) >= port.edge.needs for port in self.ports)

    def begin(self) -> Register:
        """Takes a free register for what the firing makes."""
        if not self.is_ready():
            raise RegisterError(f"{self.name!r} began to fire before it was ready")
        return self.free.popleft()

    def read(self, feeds: Mapping[str, Sequence[Any]]) -> list[Any]:
        """The inputs of the firing."""
        values: list[Any] = []
        for which, read in self._inputs:
            if isinstance(read, Feed):
                values.append(feeds[read.name][self.fired])
                continue
            port = self.ports[which]
            if read.every:
                values.append([register.read(firing)[read.output] for register, firing in port.filled])
            else:
                register, firing = port.filled[0]
                values.append(register.read(firing)[read.output])
        return values

    def finish(self, register: Register, outputs: Sequence[Any], bus: Bus) -> None:
        """Passes on what the firing made, and gives back what it has read."""
        number, self.fired = self.fired, self.fired + 1
        is_last = self.fired == self.firings
        consumers = [(actor, which) for actor, which, edge in self.consumers if is_last or not edge.last]
        register.fill(number, outputs, len(consumers))
        if not consumers:
            self._set_free(register)
        for actor, which in consumers:
            bus.post(Produced(actor, which, register, number), self)
        for port in self.ports:
            if self.fired % port.edge.serves == 0:
                for _ in range(port.edge.needs):
                    bus.post(Consumed(port.producer, port.filled.popleft()[0]), self)

    def take_in(self, port: int, register: Register, firing: int) -> None:
        """A register was filled for it."""
        self.ports[port].filled.append((register, firing))

    def take_back(self, register: Register) -> None:
        """One of its consumers has read a register."""
        if register.release():
            self._set_free(register)

    def _set_free(self, register: Register) -> None:
        register.free()
        self.free.append(register)


def make_actors(graph: ActorGraph, process: int | None = None) -> dict[str, Actor]:
    """The actors of a process, or of all, before their first firing."""
    here = [spec for spec in graph.actors if process is None or graph.queue_of[spec.name].process == process]
    actors = {spec.name: Actor(spec, graph.firings(spec.name)) for spec in here}
    for actor in actors.values():
        actor.connect(graph, actors)
    return actors
