"""Staged programs: a captured step in chunks, run by actors."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import tensorflow as tf

from whaleish import tf_private
from whaleish.boxing.local import LocalBoxer
from whaleish.capture import Capture
from whaleish.collector import collector_paused
from whaleish.planner import Plan
from whaleish.planner.actors import feed_of, make_actors
from whaleish.planner.chunks import Chunk, Key, cut
from whaleish.report.shares import Share, staged_shares
from whaleish.rewrite.chunk import EmittedChunk, adds_up, emit_chunk
from whaleish.rewrite.emit import Emitted
from whaleish.rewrite.expand import expand
from whaleish.runtime import EACH, Executor
from whaleish.runtime import Chunk as Work
from whaleish.state import lay_out, moves, settle_all, storage
from whaleish.world import World


class StagedProgram:
    """What this process runs for one signature of a step with stages.

    Making it lays the step's variables out as the plan says, each on the devices of its stage.

    Attributes:
      capture, plan: what it was made from. chunks: the step in pieces. actors: who runs them.
    """

    def __init__(self, capture: Capture, plan: Plan, world: World) -> None:
        self.capture, self.plan, self.world = capture, plan, world
        self.chunks = cut(capture.graph, plan)
        self.actors = make_actors(self.chunks, plan)
        self._functions = Functions()
        self._variables = dict(zip((v.name for v in capture.graph.variables), capture.variables, strict=True))
        self._running = {str(chunk.key): RunningChunk(chunk, self) for chunk in self.chunks.all}
        self._executor = Executor(self.actors, {name: running.work for name, running in self._running.items()})
        self._lay_out()

    def __call__(self, arguments: Sequence[Any], batch: int = 0) -> Any:
        """Runs the step; see `Program`."""
        settle_all()
        if self._moves != moves.count:
            self._lay_out()
        values = [*map(tf.convert_to_tensor, arguments), *self.capture.captured, *self.capture.resources]
        feeds = {}
        for running in self._running.values():
            phase = running.chunk.key.phase
            for argument in running.chunk.arguments:
                count = self.actors.micro_batches if phase == EACH else 1
                feeds[feed_of(argument, phase)] = [(values[argument],)] * count
        results = self._executor.run(feeds)
        found = {(read.actor, read.output): value[-1] for read, value in results.items()}
        flat = []
        for tensor, output in zip(self.capture.graph.outputs, self.chunks.outputs, strict=True):
            if output is None:
                spec = self.capture.graph.tensors[tensor]
                flat.append(tf.constant(self.capture.graph.constants[tensor], spec.dtype))
            else:
                key, number = output
                flat.append(found[str(key), 1 + number][0])
        return self.capture.pack(flat)

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
            lay_out(known, layout, self.plan.mesh_of(graph.tensors[variable.handle].producer).in_space)
        for running in self._running.values():
            running.find_handles(self._variables)
        self._moves = moves.count


class Functions:
    """Functions registered with TensorFlow's runtime; equal ones once. They go when this does."""

    def __init__(self) -> None:
        self._names: dict[bytes, str] = {}
        self._registered: list[str] = []

    def __del__(self) -> None:
        for name in reversed(getattr(self, "_registered", [])):
            tf_private.remove_function(name)

    def register(self, emitted: Any) -> str:
        """The name under which a function can be called."""
        function = emitted.function_def("")
        content = function.SerializeToString(deterministic=True)
        if emitted.bodies or content not in self._names:
            name = self._names[content] = f"__whaleish_chunk_{next(_serial)}"
            function.signature.name = name
            for each in (*emitted.bodies, function):
                tf_private.register_function(each)
                self._registered.append(each.signature.name)
        return self._names[content]


class RunningChunk:
    """A chunk as the work of an actor: from what it reads to what it gives.

    A tensor is given as a tuple of its pieces. Of a total over micro-batches, and of what is joined, the chunk keeps
    what came of the earlier ones as its state.
    """

    def __init__(self, chunk: Chunk, program: StagedProgram) -> None:
        self.chunk, self._program = chunk, program
        self._mesh = chunk.plan.mesh
        self._last = program.actors.micro_batches - 1
        self._made: dict[int, tuple[str, EmittedChunk]] = {}
        self._handles: list[tf.Tensor] = []
        self._kept = [number for number, give in enumerate(chunk.gives) if give.axis is not None]
        times = range(self._last + 1) if chunk.key.phase == EACH else (0,)
        for firing in times:
            self._function(firing)
        self.work = Work(self._run, (lambda: [()] * len(self._kept)) if self._kept else None)

    def functions(self) -> Iterator[tuple[int, Emitted]]:
        """For each firing the function that it runs."""
        return ((firing, made.emitted) for firing, (_, made) in self._made.items())

    def find_handles(self, variables: dict[str, tf.Variable]) -> None:
        """Looks up where the storage of the variables is that the chunk uses."""
        _, emitted = self._function(0)
        names = {v.handle: v.name for v in self.chunk.graph.variables}
        inputs = set(self.chunk.graph.inputs)
        self._handles = []
        for tensor, place in emitted.emitted.arguments:
            if tensor not in inputs:
                stored = storage(variables[names[tensor]])
                self._handles.append(stored.handles[0 if place < 0 else stored.parts.index(place)])

    def _run(self, inputs: list[Any], firing: int) -> list[Any]:
        chunk = self.chunk
        count = len(chunk.arguments) + len(chunk.takes)
        kept = inputs[len(inputs) - len(self._kept) :] if self._kept else []
        name, emitted = self._function(firing)
        totals = [
            piece
            for number, value in zip(self._kept, kept, strict=True)
            if adds_up(chunk.gives[number])
            for piece in value
        ]
        pieces = [piece for value in inputs[:count] for piece in value]
        flat = iter(tf_private.call_function(name, [*pieces, *self._handles, *totals], sum(emitted.pieces)) or ())
        values = [tuple(itertools.islice(flat, number)) for number in emitted.pieces]
        state = []
        for number, before in zip(self._kept, kept, strict=True):
            give = chunk.gives[number]
            if not adds_up(give):
                values[number] = (*before, values[number])
            state.append(values[number])
            if not adds_up(give) and firing == self._last:
                values[number] = tuple(map(partial(self._join, give), zip(*values[number], strict=True)))
        return [None, *values, *state]

    def _join(self, give: Any, pieces: Sequence[tf.Tensor]) -> tf.Tensor:
        """What a part made of each micro-batch, one after another."""
        with tf.device(pieces[0].device):
            return tf.concat(pieces, give.layout[give.axis].dim) if len(pieces) > 1 else pieces[0]

    @collector_paused()
    def _function(self, firing: int) -> tuple[str, EmittedChunk]:
        """The function for a micro-batch."""
        if firing not in self._made:
            mesh, world = self._mesh, self._program.world
            times = [mesh.time(part) for part in range(mesh.size)]
            parts = [part for part in range(mesh.size) if times[part] in ((), (firing,))]
            devices = [world.devices[mesh.device(part)] for part in parts]
            emitted = emit_chunk(
                self.chunk,
                parts,
                devices,
                lambda writer, _: LocalBoxer(writer, mesh, parts, devices),
                further=firing > 0,
            )
            self._made[firing] = self._program._functions.register(emitted.emitted), emitted
        return self._made[firing]


_serial = itertools.count()
