"""Staged programs: a captured step in chunks, run by actors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import tensorflow as tf

from whaleish import tf_private
from whaleish.boxing.boxer import Boxer
from whaleish.boxing.horovod import HorovodBoxer, Sets
from whaleish.boxing.local import LocalBoxer
from whaleish.capture import Capture
from whaleish.chunks import Chunk, Give, Key, cut, feed_of, make_actors
from whaleish.collector import collector_paused
from whaleish.numbers import number_of
from whaleish.opening import opening_numbers
from whaleish.planner import Plan
from whaleish.process_sets import stage_sets, transfer_sets
from whaleish.registered import RegisteredFunctions
from whaleish.report.shares import Share, staged_shares
from whaleish.report.stages import predict_stages
from whaleish.rewrite.chunk import EmittedChunk, emit_chunk
from whaleish.rewrite.emit import Emitted
from whaleish.rewrite.entry import entry_function
from whaleish.rewrite.expand import expand
from whaleish.runtime import EACH, Executor, Trace, Transfer
from whaleish.runtime import Chunk as Work
from whaleish.state import Resource, assigned_number, forget_assigned, lay_out, moves, settle_all, storage
from whaleish.transfers import HorovodTransport, Kind
from whaleish.world import World
from whaleish.writer import FunctionWriter

RANKS_S, WORK_S = 2.0, 10.0
"""How long a failed step waits for firings under way: over several processes some wait for ranks that never come."""


class StagedProgram:
    """What this process runs for one signature of a step with stages.

    Making it lays the step's variables out as the plan says, each on the devices of its stage; over several processes
    that is a collective.

    Attributes:
      capture, plan: what it was made from. chunks: the step in pieces. actors: who runs them.
    """

    def __init__(self, capture: Capture, plan: Plan, world: World) -> None:
        assert plan.pipelining is not None
        self.capture, self.plan, self.world = capture, plan, world
        self.chunks = cut(capture.graph, plan)
        self.actors = make_actors(self.chunks, plan, world.processes)
        self._chunk_of = {chunk.key: chunk for chunk in self.chunks.all}
        self._identity = number_of(str(plan.nameless()))
        self._name = f"wh{self._identity:014x}"
        self._variables = dict(zip((v.name for v in capture.graph.variables), capture.variables, strict=True))
        self._functions = RegisteredFunctions()
        sets = stage_sets(plan.pipelining.meshes, world) if world.distributed else [None] * len(plan.pipelining.meshes)
        graph = self.actors.graph
        make = partial(RunningChunk, graph.micro_batches, world, self._functions, self._name)
        self._running = {
            actor: make(self._chunk_of[key], sets[key.stage])
            for actor, key in self.actors.chunk_of.items()
            if graph.queue_of[actor].process == world.rank
        }
        self._executor = Executor(
            graph,
            {actor: running.work for actor, running in self._running.items()},
            process=world.rank,
            transport=self._join_ranks() if world.distributed else None,
            patience=RANKS_S if world.distributed else WORK_S,
        )
        self._lay_out()

    def _join_ranks(self) -> HorovodTransport:
        """What is needed over several processes only: the entry, and transfers."""
        graph, world = self.capture.graph, self.world
        given = [graph.tensors[tensor] for tensor in graph.inputs[: self.capture.arguments]]
        arguments = list(zip(given, self.plan.inputs, strict=False))
        entry = entry_function(self._name, self._identity, arguments, world.size, world.rank, world.devices[0])
        self._entry = self._functions.register(entry)
        sets = transfer_sets(self.actors.graph, world)
        return HorovodTransport(self.actors.graph, sets, self._expected, self._name, world.devices[0])

    def __call__(self, arguments: Sequence[Any], batch: int = 0, trace: Trace | None = None) -> Any:
        """Runs the step; see `Program`. A trace collects its events."""
        settle_all()
        if self._moves != moves.count:
            self._lay_out()
        given = list(map(tf.convert_to_tensor, arguments))
        if self.world.distributed:
            numbers = opening_numbers(batch, assigned_number(self.capture.variables))
            given = tf_private.call_function(self._entry, [*given, *numbers], len(given))
        values = [*given, *self.capture.captured, *self.capture.resources]
        feeds = {}
        for running in self._running.values():
            phase = running.chunk.key.phase
            for argument in running.chunk.arguments:
                count = self.actors.graph.micro_batches if phase == EACH else 1
                feeds[feed_of(argument, phase)] = [values[argument]] * count
        results = self._executor.run(feeds, trace)
        forget_assigned(self.capture.variables)
        graph = self.capture.graph
        reads = self.actors.outputs[self.world.rank]
        flat = [
            tf.constant(graph.constants[tensor], graph.tensors[tensor].dtype) if read is None else results[read][-1]
            for tensor, read in zip(graph.outputs, reads, strict=True)
        ]
        return self.capture.pack(flat)

    def _expected(self, transfer: Transfer) -> list[Kind]:
        """Shapes and types of what goes from one process to another."""
        kinds = []
        for key, number, part in self.actors.loads[transfer.sender]:
            give = self._chunk_of[key].gives[number]
            spec, mesh = self.capture.graph.tensors[give.tensor], self._chunk_of[key].plan.mesh
            own = mesh.at_time(part, transfer.firing if give.axis is None else 0)
            kinds.append((mesh.local_shape(spec.shape or (), give.arrival, own), spec.dtype))
        return kinds

    def predicted(self) -> Trace:
        """When everything would happen, in all processes, at the rates of the cluster."""
        return predict_stages(self.capture.graph, self.chunks, self.actors, self.plan, self.world.rates)

    def shares(self) -> list[Share]:
        """What each device holds and does."""
        chunks = (expand(chunk.graph, chunk.plan) for chunk in self.chunks.all)
        return staged_shares(chunks, self.capture.graph, self.plan, once=not self.world.distributed)

    def emitted(self) -> Iterator[tuple[Key, int, Emitted]]:
        """The functions that this process runs in a step: chunk, micro-batch, function."""
        for running in self._running.values():
            for firing, emitted in running.functions():
                yield running.chunk.key, firing, emitted

    def _lay_out(self) -> None:
        """Lays the variables out as the plan says, where they are not."""
        graph = self.capture.graph
        for variable, known, (_, layout) in zip(
            graph.variables, self.capture.variables, self.plan.variables, strict=True
        ):
            mesh = self.plan.mesh_of(graph.tensors[variable.handle].producer).in_space
            lay_out(known, layout, mesh, variable.on_host)
        for running in self._running.values():
            running.find_handles(self._variables)
        self._moves = moves.count


class RunningChunk:
    """A chunk as the work of an actor: from what it reads to what it gives, piece by piece.

    Totals over micro-batches are added up in place, in resources; of what is joined it keeps as its state what came of
    the earlier ones.
    """

    def __init__(
        self,
        micro_batches: int,
        world: World,
        functions: RegisteredFunctions,
        name: str,
        chunk: Chunk,
        sets: Sets | None,
    ) -> None:
        self.chunk = chunk
        self._micro_batches, self._world, self._functions = micro_batches, world, functions
        self._prefix, self._sets = f"{name}_{str(chunk.key).replace(' ', '_')}", sets
        times = micro_batches if chunk.key.phase == EACH else 1
        self._expanded = expand(chunk.graph, chunk.plan)
        self._made = [self._make(firing, times) for firing in range(times)]
        self._handles: list[tf.Tensor] = []
        self._guard = [tf.constant(0, tf.int32)] if world.distributed else []
        _, emitted = self._made[0]
        self._totals = [
            Resource(
                tf.TensorShape(total.shape), tf.as_dtype(total.dtype), total.device, f"{self._prefix}.{total.piece}"
            )
            for total in emitted.totals
        ]
        self._gives = [give for give, count in zip(chunk.gives, emitted.pieces, strict=True) for _ in range(count)]
        joined = [piece for piece, give in enumerate(self._gives) if give.axis is not None and not give.adds_up]
        self._joined = joined
        self.work = Work(self._run, (lambda: [()] * len(joined)) if joined else None, self._source)

    def functions(self) -> Iterator[tuple[int, Emitted]]:
        """For each firing the function that it runs."""
        return ((firing, made.emitted) for firing, (_, made) in enumerate(self._made))

    def find_handles(self, variables: dict[str, tf.Variable]) -> None:
        """Looks up where the storage of the variables is that the chunk uses."""
        _, emitted = self._made[0]
        names = {v.handle: v.name for v in self.chunk.graph.variables}
        self._handles = []
        for tensor, place in emitted.emitted.arguments:
            if tensor in names:
                self._handles.append(storage(variables[names[tensor]]).handle_of(place))

    def _run(self, inputs: list[Any], firing: int) -> list[Any]:
        """One firing.

        Args:
          inputs: pieces, then what only has to be waited for, then the state: for each piece that is joined a tuple of
            what came of each micro-batch so far.
        """
        name, emitted = self._made[firing]
        before = inputs[len(inputs) - len(self._joined) :] if self._joined else []
        pieces = inputs[: len(emitted.emitted.arguments) - len(self._handles)]
        given = [*pieces, *self._handles, *self._guard, *(total.handle for total in self._totals)]
        values: list[Any] = [None] * len(self._gives)
        made = tf_private.call_function(name, given, len(emitted.outputs))
        for piece, value in zip(emitted.outputs, made, strict=True):
            values[piece] = value
        state = [(*earlier, values[piece]) for piece, earlier in zip(self._joined, before, strict=True)]
        if firing == self._micro_batches - 1:
            for piece, every in zip(self._joined, state, strict=True):
                values[piece] = _join(self._gives[piece], every)
        return [None, *values, *state]

    def _source(self, error: BaseException) -> str:
        """The line of the user's of the op that failed."""
        for name, made in self._made:
            op = made.emitted.failed(error) if f"{name}}}}}" in str(error) else None
            if op is not None:
                return made.emitted.graph.source(op)
        return ""

    @collector_paused()
    def _make(self, firing: int, times: int) -> tuple[str, EmittedChunk]:
        """The function for a micro-batch, one of so many."""
        mesh, world = self.chunk.plan.mesh, self._world
        parts = mesh.parts_at(firing)
        if world.distributed:
            parts = [part for part in parts if mesh.device(part) == world.rank]
        devices = [world.devices[0 if world.distributed else mesh.device(part)] for part in parts]

        def make_boxer(writer: FunctionWriter, _: Any) -> Boxer:
            if not world.distributed:
                return LocalBoxer(writer, mesh, parts, devices)
            guard = writer.argument("guard", "int32", ())
            assert self._sets is not None, "a process runs only chunks of stages that it is in"
            return HorovodBoxer(writer, mesh, parts[0], devices[0], self._prefix, guard, self._sets)

        first, last = firing == 0, firing == times - 1
        emitted = emit_chunk(*self._expanded, self.chunk.gives, parts, devices, make_boxer, first=first, last=last)
        return self._functions.register(emitted.emitted.function_def(""), emitted.emitted.bodies), emitted


def _join(give: Give, pieces: Sequence[tf.Tensor]) -> tf.Tensor:
    """What a part made of each micro-batch, one after another."""
    assert give.axis is not None
    with tf.device(pieces[0].device):
        return tf.concat(pieces, give.layout[give.axis].dim)
