"""Programs: a captured step, planned, rewritten for this process, and ready to run."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from whaleish import tf_private
from whaleish.boxing.horovod import HorovodBoxer
from whaleish.boxing.local import LocalBoxer
from whaleish.capture import Capture
from whaleish.planner import Plan
from whaleish.report.shares import Share, shares
from whaleish.rewrite.check import write_check
from whaleish.rewrite.emit import Emitted, Emitter
from whaleish.rewrite.expand import expand
from whaleish.state import lay_out, settle_all, storage
from whaleish.world import World
from whaleish.writer import FunctionWriter


class Program:
    """What this process runs for one signature of a step.

    Making it lays the step's variables out as the plan says.

    Attributes:
      capture, plan: what it was made from.
      emitted: the function that runs, as a proto with its arguments.
    """

    def __init__(self, capture: Capture, plan: Plan, world: World, *, checked_inputs: Sequence[int] = ()) -> None:
        self.capture, self.plan, self.world = capture, plan, world
        self.emitted = emit(capture, plan, world, checked_inputs)
        self._place_of = {tensor: place for place, tensor in enumerate(capture.graph.inputs)}
        self._variable_of = {v.handle: obj for v, obj in zip(capture.graph.variables, capture.variables, strict=True)}
        self._layouts = [layout for _, layout in plan.variables]
        digest = hashlib.sha256(self.emitted.writer.function_def.SerializeToString(deterministic=True)).hexdigest()[:16]
        self.name = f"__whaleish_{digest}_{id(self)}"
        outputs = [_outward(self.emitted.writer, ref) for ref in self.emitted.outputs]
        self._outputs = len(outputs)
        for function in capture.library.function:
            tf_private.register_function(function)
        tf_private.register_function(self.emitted.writer.finish(self.name, outputs, self.emitted.must_run))
        self._sources = self._argument_sources()

    def __del__(self) -> None:
        if getattr(self, "name", None):
            tf_private.remove_function(self.name)

    def __call__(self, arguments: Sequence[Any]) -> Any:
        """Runs the step on its flat arguments; returns what the user's function returns, logical values.

        Args:
          arguments: one per argument of the capture, in its layout in the plan: the whole, or this process's part.
        """
        settle_all()
        if not self.in_place():
            self._sources = self._argument_sources()
        values = [*arguments, *self.capture.captured, *self.capture.resources]
        inputs = [values[source] if isinstance(source, int) else source for source in self._sources]
        flat = tf_private.call_function(self.name, [tf.convert_to_tensor(value) for value in inputs], self._outputs)
        return self.capture.pack(flat)

    def shares(self) -> list[Share]:
        """What each part of the mesh holds and does."""
        graph, plan = expand(self.capture.graph, self.plan)
        return shares(graph, plan, once=not self.world.distributed)

    def in_place(self) -> bool:
        """Whether the variables are still laid out as this program reads them."""
        return all(
            storage(variable).layout in (layout, ())
            for variable, layout in zip(self.capture.variables, self._layouts, strict=True)
        )

    def _argument_sources(self) -> list[int | tf.Tensor]:
        """For each argument of the function: the place of a step's input, or a variable's handle, or the guard."""
        for variable, layout in zip(self.capture.variables, self._layouts, strict=True):
            lay_out(variable, layout, self.plan.mesh)
        sources: list[int | tf.Tensor] = []
        for tensor, part, _ in self.emitted.arguments:
            if tensor < 0:
                sources.append(tf.constant(0, tf.int32))
            elif tensor in self._place_of:
                sources.append(self._place_of[tensor])
            else:
                stored = storage(self._variable_of[tensor])
                sources.append(stored.handles[0 if part < 0 else stored.parts.index(part)])
        return sources


def _outward(writer: FunctionWriter, ref: str) -> str:
    """A function may not return an argument of its own twice, nor a constant's node twice: each gets an identity."""
    return writer.add("Identity", [ref])[0]


GUARD = -1


def emit(capture: Capture, plan: Plan, world: World, checked_inputs: Sequence[int]) -> Emitted:
    """Writes the function of this process: pure, nothing is registered or laid out."""
    graph, expanded = expand(capture.graph, plan)
    if not world.distributed:
        emitter = Emitter(graph, expanded, range(plan.mesh.size), [world.devices[d] for d in plan.mesh.devices])
        return emitter.run(lambda writer: LocalBoxer(writer, plan.mesh, emitter.parts, emitter.devices))
    part, device = plan.mesh.devices.index(world.rank), world.devices[0]
    emitter = Emitter(graph, expanded, [part], [device])
    identity = int.from_bytes(hashlib.sha256(str(plan).encode()).digest()[:7], "big")

    def make_boxer(writer: FunctionWriter) -> HorovodBoxer:
        guard = writer.argument("guard", "int32", ())
        emitter.emitted.arguments.append((GUARD, -1, guard))
        boxer = HorovodBoxer(writer, plan.mesh, part, device, f"wh{identity:014x}", guard)
        named = {tensor: ref for tensor, _, ref in emitter.emitted.arguments}
        inputs = [(named[t], graph.tensors[t].shape or ()) for t in (graph.inputs[i] for i in checked_inputs)]
        boxer.gate = write_check(boxer, identity, inputs, device)
        return boxer

    return emitter.run(make_boxer)
