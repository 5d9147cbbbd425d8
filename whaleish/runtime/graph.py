"""Actor graphs: all actors of a step and how they hang together, as plain data."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from whaleish.runtime.problems import find_problems
from whaleish.runtime.spec import AFTER, BEFORE, EACH, ActorSpec, Edge, Queue, Read


@dataclass(frozen=True)
class ActorGraph:
    """All actors of a step, in all processes.

    Attributes:
      groups: actors whose chunks have collectives in common: a firing of one ends only when all have begun theirs.
      results: outputs that a run returns.

    Raises:
      ValueError: lists what is wrong.
    """

    actors: tuple[ActorSpec, ...]
    queues: tuple[Queue, ...]
    micro_batches: int
    groups: tuple[tuple[str, ...], ...] = ()
    results: tuple[Read, ...] = ()

    def __post_init__(self) -> None:
        problems = list(find_problems(self))
        if problems:
            raise ValueError("these actors cannot run: " + "; ".join(problems))

    @cached_property
    def by_name(self) -> dict[str, ActorSpec]:
        return {spec.name: spec for spec in self.actors}

    @cached_property
    def queue_of(self) -> dict[str, Queue]:
        """For each actor its queue."""
        queues = {queue.name: queue for queue in self.queues}
        return {spec.name: queues[spec.queue] for spec in self.actors}

    @cached_property
    def receiver_of(self) -> dict[str, str]:
        """For each actor that sends the one that receives."""
        return {spec.receives: spec.name for spec in self.actors if spec.receives is not None}

    @cached_property
    def meets(self) -> dict[str, tuple[str, ...]]:
        """For each actor that waits for others within a firing those others and itself: its group, or both ends."""
        found = {name: group for group in self.groups for name in group}
        for sender, receiver in self.receiver_of.items():
            found[sender] = found[receiver] = (sender, receiver)
        return found

    def kind(self, actor: str) -> str:
        """ "send" or "receive" for an end of a transfer, "chunk" for all others."""
        if self.by_name[actor].receives is not None:
            return "receive"
        return "send" if actor in self.receiver_of else "chunk"

    def firings(self, actor: str) -> int:
        """How often an actor fires."""
        return self.micro_batches if self.by_name[actor].phase == EACH else 1

    def edge(self, read: Read, consumer: str) -> Edge:
        """At which rate an actor reads from another."""
        phases = self.by_name[read.actor].phase, self.by_name[consumer].phase
        if phases == (BEFORE, EACH):
            return Edge(read.actor, consumer, serves=self.micro_batches)
        if phases == (EACH, AFTER):
            return Edge(read.actor, consumer, not read.every, self.micro_batches if read.every else 1)
        return Edge(read.actor, consumer)

    def edges(self, consumer: str) -> list[Edge]:
        """What an actor reads from, each once for all outputs that it takes from there."""
        reads = [read for read in self.by_name[consumer].inputs if isinstance(read, Read)]
        return list(dict.fromkeys(self.edge(read, consumer) for read in reads))
