"""Actors: which of them carry out a step in chunks, in which process, in which order, with how many registers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from whaleish.chunks.chunk import TURNS, Chunk, Chunks, Key
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
from whaleish.schedule import Action

DONE = 0
"""The output of every chunk that holds nothing, for those who only wait for it; what it gives follows."""


class Piece(NamedTuple):
    """A piece of what a chunk gives.

    Attributes:
      number: of the give. part: of the mesh of the chunk's stage, that has the piece at the first micro-batch.
    """

    key: Key
    number: int
    part: int


@dataclass(frozen=True)
class Actors:
    """The actors of a step with stages.

    Attributes:
      graph: of all processes.
      chunk_of: for each actor that runs a chunk which.
      loads: for each actor that sends what it does.
      outputs: for each process, of each output of the step where it is read; None for a constant.
    """

    graph: ActorGraph
    chunk_of: dict[str, Key]
    loads: dict[str, tuple[Piece, ...]]
    outputs: dict[int, tuple[Read | None, ...]]


def feed_of(argument: int, phase: str) -> str:
    """The name under which a chunk of a phase is fed an argument of the step."""
    return f"argument {argument} {'of each micro-batch' if phase == EACH else 'once'}"


def make_actors(chunks: Chunks, plan: Plan, processes: int = 1) -> Actors:
    """An actor for each chunk, in each process that has devices of its stage, and two for each transfer.

    Args:
      processes: 1, or as many as there are devices: then each has one.
    """
    return _Maker(chunks, plan, processes).make()


class _Maker:
    def __init__(self, chunks: Chunks, plan: Plan, processes: int) -> None:
        assert plan.pipelining is not None
        self.chunks, self.stages, self.several = chunks, plan.pipelining, processes > 1
        self.by_key = {chunk.key: chunk for chunk in chunks.all}
        self.micro_batches, self.schedule = plan.mesh.micro_batches, plan.pipelining.order
        self.processes = range(processes)
        self.loads: dict[str, list[Piece]] = {}  # sender -> what it sends
        self.transfers: dict[str, tuple[int, int, str, int]] = {}  # sender -> from, to, phase, stage
        self._places: dict[tuple[Key, int], dict[tuple[int, int], int]] = {}

    def make(self) -> Actors:
        chunk_of: dict[str, Key] = {}
        actors, groups = [], []
        for chunk in self.chunks.all:
            own = []
            for process in self._homes(chunk.key.stage):
                spec = self._actor(chunk, process)
                chunk_of[spec.name] = chunk.key
                own.append(spec)
            actors += own
            if len(own) > 1:
                groups.append(tuple(spec.name for spec in own))
        outputs = {
            process: tuple(self._output(output, process) for output in self.chunks.outputs)
            for process in self.processes
        }
        queues = [queue for process in self.processes for queue in self._queues(process)]
        for sender in self.transfers:
            both = self._ends(sender)
            actors += both
            ends = (self.transfers[sender][0], self.transfers[sender][1])
            queues += [Queue(spec.queue, process=process) for spec, process in zip(both, ends, strict=True)]
        results = tuple(dict.fromkeys(read for reads in outputs.values() for read in reads if read is not None))
        graph = ActorGraph(tuple(actors), tuple(queues), self.micro_batches, tuple(groups), results)
        # Assumed: a backward takes twice as long as a forward, and a transfer a little.
        seconds = {spec.name: 2.0 if spec.name.startswith("B") else 1.0 for spec in actors}
        seconds |= {spec.name: 0.1 for sender in self.transfers for spec in self._ends(sender)}
        loads = {sender: tuple(pieces) for sender, pieces in self.loads.items()}
        return Actors(with_room(graph, seconds), chunk_of, loads, outputs)

    def _homes(self, stage: int) -> Sequence[int]:
        """The processes that have devices of a stage."""
        return self.stages.meshes[stage].devices if self.several else (0,)

    def _name(self, key: Key, process: int) -> str:
        return f"{key} on rank {process}" if self.several else str(key)

    def _actor(self, chunk: Chunk, process: int) -> ActorSpec:
        reads: list[Read | Feed] = [Feed(feed_of(argument, chunk.key.phase)) for argument in chunk.arguments]
        for key, number in chunk.takes:
            reads += self._reads(key, number, chunk.key, process)
        here = (key for key in chunk.waits if process in self._homes(key.stage))
        reads += [Read(self._name(key, process), DONE) for key in here]
        stage = chunk.key.stage
        devices = ", ".join(map(str, self.stages.meshes[stage].devices))
        queue = f"rank {process}" if self.several else f"devices {devices}"
        return ActorSpec(
            self._name(chunk.key, process),
            queue,
            tuple(reads),
            phase=chunk.key.phase,
            stage=stage,
            source=next(filter(None, map(chunk.graph.source, range(len(chunk.graph.ops)))), ""),
        )

    def _parts(self, stage: int, process: int) -> list[int]:
        """The parts of a stage that a process has at the first micro-batch."""
        mesh = self.stages.meshes[stage]
        return [part for part in mesh.parts_at(0) if not self.several or mesh.device(part) == process]

    def _output_of(self, key: Key, number: int, part: int, process: int) -> int:
        """Which output of a chunk's actor a piece is."""
        if (key, process) not in self._places:
            mesh, parts = self.stages.meshes[key.stage], self._parts(key.stage, process)
            gives = enumerate(self.by_key[key].gives)
            pieces = [(number, own) for number, give in gives for own in mesh.distinct(parts, give.layout)]
            self._places[key, process] = {piece: place for place, piece in enumerate(pieces, DONE + 1)}
        return self._places[key, process][number, part]

    def _reads(self, key: Key, number: int, reader: Key, process: int) -> list[Read]:
        """The pieces of what a chunk gives, as one in a process reads them."""
        mesh, own = self.stages.meshes[key.stage], self.stages.meshes[reader.stage]
        give = self.by_key[key].gives[number]
        if not self.several:
            parts = mesh.distinct(self._parts(key.stage, 0), give.layout)
            return [Read(self._name(key, 0), self._output_of(key, number, part, 0)) for part in parts]
        place = own.devices.index(process) % len(mesh.devices)
        phase = AFTER if key.phase == EACH and reader.phase == AFTER else key.phase
        return [self._read(key, number, mesh.devices[place], process, phase, reader.stage)]

    def _read(self, key: Key, number: int, giver: int, process: int, phase: str, stage: int) -> Read:
        """The piece that one process has of what is given, as another reads it: by a transfer, if it is another."""
        (part,) = self._parts(key.stage, giver)
        if giver == process:
            return Read(self._name(key, process), self._output_of(key, number, part, process))
        sender = f"{self._name(key, giver)} to stage {stage} on rank {process}"
        if phase != key.phase:
            sender = f"sums of {sender}"
        self.transfers.setdefault(sender, (giver, process, phase, stage))
        load = self.loads.setdefault(sender, [])
        piece = Piece(key, number, part)
        if piece not in load:
            load.append(piece)
        return Read(_receiver(sender), load.index(piece))

    def _output(self, output: tuple[Key, int] | None, process: int) -> Read | None:
        """Where a process reads an output of the step."""
        if output is None:
            return None
        key, number = output
        homes = self._homes(key.stage)
        giver = process if process in homes else homes[process % len(homes)]
        if not self.several:
            return Read(self._name(key, 0), self._output_of(key, number, self._parts(key.stage, 0)[0], 0))
        return self._read(key, number, giver, process, key.phase, key.stage)

    def _ends(self, sender: str) -> tuple[ActorSpec, ActorSpec]:
        """The two actors of a transfer, each on a queue of its own."""
        giver, _, phase, stage = self.transfers[sender]
        inputs = tuple(
            Read(self._name(key, giver), self._output_of(key, number, part, giver))
            for key, number, part in self.loads[sender]
        )
        key = self.loads[sender][0].key
        receiver = _receiver(sender)
        return (
            ActorSpec(sender, sender, inputs, phase, stage=key.stage),
            ActorSpec(receiver, receiver, (), phase, receives=sender, stage=stage),
        )

    def _queues(self, process: int) -> list[Queue]:
        """For each group of devices of a process the order in which its chunks fire."""
        groups: dict[tuple[int, ...], list[int]] = {}
        for stage, mesh in enumerate(self.stages.meshes):
            if process in self._homes(stage):
                groups.setdefault(mesh.devices, []).append(stage)
        # A W that fills an idle moment holds up the B for which all wait, where it is too long for it.
        kept = self.schedule is not None and any(map(self.schedule.splits_backward, range(self.schedule.stages)))
        if not self.several:
            return [Queue(f"devices {', '.join(map(str, d))}", self._order(own, 0), kept) for d, own in groups.items()]
        stages = [stage for own in groups.values() for stage in own]
        # Ranks that share a chunk meet within it, so all must go through their chunks in the same order.
        kept |= any(len(devices) > 1 for devices in groups)
        return [Queue(f"rank {process}", self._order(stages, process), kept, process)] if stages else []

    def _order(self, stages: Sequence[int], process: int) -> tuple[Firing, ...]:
        """In which order the chunks of some stages fire, which share one queue."""
        own = [chunk.key for chunk in self.chunks.all if chunk.key.stage in stages]
        before, after = ([self._name(key, process) for key in own if key.phase == phase] for phase in (BEFORE, AFTER))
        if self.schedule is None:
            return firing_order((), lambda _: (), before, after)

        def actors(action: Action) -> list[str]:
            key = Key(EACH, action.stage, TURNS.index(action.kind))
            return [self._name(key, process)] if key in self.by_key else []

        actions = self.schedule.computes(self.schedule.places[stages[0]])
        return firing_order(actions, actors, before, after)


def _receiver(sender: str) -> str:
    return f"{sender}, received"
