"""Programs: a captured step, planned, rewritten for this process, and ready to run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from whaleish import tf_private
from whaleish.boxing.boxer import Boxer
from whaleish.boxing.horovod import WORLD, HorovodBoxer, Sets
from whaleish.boxing.local import LocalBoxer
from whaleish.boxing.timed import TimedBoxer
from whaleish.capture import Capture
from whaleish.collector import collector_paused
from whaleish.numbers import number_of
from whaleish.opening import opening_numbers
from whaleish.planner import Plan
from whaleish.process_sets import process_sets
from whaleish.registered import RegisteredFunctions
from whaleish.report.shares import Share, shares
from whaleish.rewrite.check import open_step
from whaleish.rewrite.emit import Emitted, Emitter
from whaleish.rewrite.expand import expand
from whaleish.state import assigned_number, forget_assigned, lay_out, moves, settle_all, storage
from whaleish.world import World
from whaleish.writer import FunctionWriter, Ref


class Program:
    """What this process runs for one signature of a step.

    Making it lays the step's variables out as the plan says; over several processes that is a collective.

    Attributes:
      capture, plan: what it was made from.
      emitted: the function that runs, as a proto with its arguments.
    """

    def __init__(self, capture: Capture, plan: Plan, world: World) -> None:
        self.capture, self.plan, self.world = capture, plan, world
        self.emitted = emit(capture, plan, world, process_sets(plan.mesh, world) if world.distributed else WORLD)
        self._place_of = {tensor: place for place, tensor in enumerate(capture.graph.inputs)}
        self._variable_of = {v.handle: obj for v, obj in zip(capture.graph.variables, capture.variables, strict=True)}
        self._layouts = [layout for _, layout in plan.variables]
        self._functions = RegisteredFunctions()
        self.name = self._functions.register(self.emitted.function_def(""), self.emitted.bodies)
        self._sources = self._argument_sources()

    def __call__(self, arguments: Sequence[Any], batch: int = 0) -> Any:
        """Runs the step on its flat arguments; returns what the user's function returns, logical values.

        Args:
          arguments: one per argument of the capture, in its layout in the plan: the whole, or this process's rows.
          batch: a hash of the whole batch, where the arguments are rows of it.
        """
        settle_all()
        if self._moves != moves.count:
            self._sources = self._argument_sources()
        values = [*map(tf.convert_to_tensor, arguments), *self.capture.captured, *self.capture.resources]
        inputs = [values[source] if isinstance(source, int) else source for source in self._sources]
        if self.world.distributed:
            inputs += opening_numbers(batch, assigned_number(self.capture.variables))
        try:
            flat = tf_private.call_function(self.name, inputs, len(self.emitted.outputs))
        except tf.errors.OpError as error:
            op = self.emitted.failed(error)
            if op is not None:
                error.add_note(f"in {self.emitted.graph.place(op)}")
            raise
        forget_assigned(self.capture.variables)
        return self.capture.pack(flat)

    def shares(self) -> list[Share]:
        """What each part of the mesh holds and does."""
        graph, plan = expand(self.capture.graph, self.plan)
        return shares(graph, plan, once=not self.world.distributed)

    def _argument_sources(self) -> list[int | tf.Tensor]:
        """For each argument of the function: the place of a step's input, or the handle of a variable's storage.

        Lays the variables out as the plan says, where they are not.
        """
        known = zip(self.capture.graph.variables, self.capture.variables, self._layouts, strict=True)
        for spec, variable, layout in known:
            lay_out(variable, layout, self.plan.mesh.in_space, spec.on_host)
        sources: list[int | tf.Tensor] = []
        for tensor, place in self.emitted.arguments:
            if tensor in self._place_of:
                sources.append(self._place_of[tensor])
            else:
                sources.append(storage(self._variable_of[tensor]).handle_of(place))
        self._moves = moves.count
        return sources


@collector_paused()
def emit(capture: Capture, plan: Plan, world: World, sets: Sets = WORLD) -> Emitted:
    """Writes the function of this process. Pure: nothing is registered or laid out.

    Args:
      sets: Horovod's process sets of this process on the plan's mesh.

    Over several processes it has three more arguments: an int32 that is always 0, the hash of the batch, and the number
    that stands for what the program assigned to variables.
    """
    graph, expanded = expand(capture.graph, plan)
    if not world.distributed:
        parts = range(plan.mesh.size)
        emitter = Emitter(graph, expanded, parts, [world.devices[plan.mesh.device(part)] for part in parts])
        return emitter.run(lambda writer, _: LocalBoxer(writer, plan.mesh, emitter.parts, emitter.devices))
    parts, device = [part for part in range(plan.mesh.size) if plan.mesh.device(part) == world.rank], world.devices[0]
    identity = number_of(str(plan.nameless()))

    def make_boxer(writer: FunctionWriter, arguments: Mapping[int, Ref]) -> Boxer:
        given = capture.graph.inputs[: capture.arguments]
        whole = [t for t, layout in zip(given, plan.inputs, strict=False) if layout[0].is_broadcast]
        compared = [(arguments[t], graph.tensors[t].shape or ()) for t in whole]
        name = f"wh{identity:014x}"

        def first(guard: Ref) -> HorovodBoxer:
            return HorovodBoxer(writer, plan.mesh, parts[0], device, name, guard, sets)

        boxer = open_step(writer, first, identity, compared)
        if len(parts) == 1:
            return boxer
        later = [boxer.beside(plan.mesh, part, sets, f"{name}_at_{time}") for time, part in enumerate(parts[1:], 1)]
        return TimedBoxer(writer, plan.mesh, [boxer, *later])

    return Emitter(graph, expanded, parts, [device] * len(parts)).run(make_boxer)
