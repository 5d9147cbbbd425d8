"""Emission: the function that one process runs, from a logical graph and its plan."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from tensorflow.core.framework.function_pb2 import FunctionDef

from whaleish.boxing.boxer import Boxer, Boxing
from whaleish.graph import LogicalGraph, Op
from whaleish.mesh import Mesh
from whaleish.offloading import HOST
from whaleish.planner.moves import find_moves
from whaleish.planner.plan import Choice, Plan
from whaleish.planner.view import op_view
from whaleish.rewrite.control import ControlWriter, Frame
from whaleish.rewrite.part import PartLowering
from whaleish.rules import registry
from whaleish.rules.control import CONTROL
from whaleish.rules.host import TO_HOST
from whaleish.rules.rows import MERGE_ROWS
from whaleish.sbp import Layout, is_whole
from whaleish.writer import FunctionWriter, Ref


@dataclass
class Emitted:
    """A finished function.

    Attributes:
      arguments: (tensor of the logical graph, number of a place among the devices, or -1 for what all share), in the
        order of the function's arguments.
      outputs: refs of the outputs, of each as many as this process has different pieces of it.
      must_run: nodes that run though no output depends on them.
      bodies: the functions that its loops and conditions refer to.
      graph: what it was written from.
      on_host: refs of what lies in the host's memory.
      op_of: body ("": the function itself) -> node -> the op of the graph that it is part of.
    """

    writer: FunctionWriter
    graph: LogicalGraph
    arguments: list[tuple[int, int]] = field(default_factory=list)
    outputs: list[Ref] = field(default_factory=list)
    must_run: list[str] = field(default_factory=list)
    bodies: list[FunctionDef] = field(default_factory=list)
    on_host: set[Ref] = field(default_factory=set)
    op_of: dict[str, dict[str, int]] = field(default_factory=dict)

    def failed(self, error: BaseException) -> int | None:
        """The op of the node of which TensorFlow says that it failed; None where it is no op's."""
        for function, node in _FAILED_NODE.findall(str(error)):
            ops = self.op_of.get(function, self.op_of[""])
            while node:
                if node in ops:
                    return ops[node]
                node = node.partition("/")[2]  # round what is in a loop is the name of the loop
        return None

    def function_def(self, name: str) -> FunctionDef:
        """The function as a proto that can be registered under a name."""
        # A result must be a node's: what the step returns may be its own argument, or one tensor twice.
        devices = (HOST if ref in self.on_host else "" for ref in self.outputs)
        results = [
            self.writer.add("Identity", [ref], device=device)[0]
            for ref, device in zip(self.outputs, devices, strict=True)
        ]
        return self.writer.finish(name, results, self.must_run)


_FAILED_NODE = re.compile(r"(?:\{\{function_node ([^}\s]+)\}\})?\{\{node ([^}\s]+)\}\}")

BoxerFactory = Callable[[FunctionWriter, Mapping[int, Ref]], Boxer]
"""Makes the boxer, given the writer and the refs of whole and local arguments."""


class Emitter:
    """Writes the parts that one process holds.

    Parts that would do the same of the same, those that differ only on axes where all layouts of an op are B, share it
    where one process holds several: it is written once, for the first of them, and the others read its results. So an
    assignment happens once for each piece of a variable.

    Args:
      parts: numbers of the mesh's parts. devices: TensorFlow's name of the device of each.
      arrival: the mesh on which inputs lie as `plan.inputs` says; None: all devices as one axis.
    """

    def __init__(
        self,
        graph: LogicalGraph,
        plan: Plan,
        parts: Sequence[int],
        devices: Sequence[str],
        arrival: Mesh | None = None,
    ) -> None:
        self.graph, self.plan, self.mesh = graph, plan, plan.mesh
        self.parts, self.devices = tuple(parts), tuple(devices)
        self.arrival = arrival or plan.mesh.flat
        self.moves = find_moves(graph, plan)
        self.writer = FunctionWriter()
        self.emitted = Emitted(self.writer, graph)
        self.step = Frame(self.writer)
        self.emitted.op_of[""] = self.step.op_of
        self.control = ControlWriter(self)
        self._nodes: list[list[list[str]]] = []
        self._effects = frozenset(graph.effects)
        self._on_host = {variable.handle for variable in graph.variables if variable.on_host}
        self._op_depths = [0] * len(graph.ops)
        self._stored = {
            v.handle: self.mesh.at_all_times(layout)
            for v, (_, layout) in zip(graph.variables, plan.variables, strict=True)
        }

    def run(self, make_boxer: BoxerFactory) -> Emitted:
        arrived = self._write_arguments()
        self.step.boxer = make_boxer(self.writer, {tensor: refs[0] for tensor, refs in arrived.items()})
        self._arrange(arrived)
        for index in range(len(self.graph.ops)):
            self._write_op(index)
        for tensor, layout in zip(self.graph.outputs, self.plan.outputs, strict=True):
            refs = self.refs(tensor, layout, self.step)
            self.emitted.outputs += [refs[place] for place in self.distinct(layout)]
        self.emitted.must_run += self.step.finish()
        if len(self.graph.regions) == 1:  # a loop holds all micro-batches, and so needs all to have begun
            self.step.boxer.turns.write(self.writer)
        return self.emitted

    def _write_arguments(self) -> dict[int, list[Ref]]:
        """Arguments for the step's inputs and for the variables' storage, in that order; the refs of the inputs."""
        dtypes = {v.handle: v.dtype for v in self.graph.variables}
        places = [self.mesh.place(part) for part in self.parts]
        arrive_as = self.parts if self.arrival == self.mesh else places
        arrived: dict[int, list[Ref]] = {}
        for tensor, layout in zip(self.graph.inputs, self.plan.inputs, strict=True):
            arrived[tensor] = self._argument(tensor, layout, self.arrival, arrive_as)
        for handle, layout in self._stored.items():
            own = self.mesh.without_time(layout)
            self.step.held[handle, layout] = self._argument(handle, own, self.mesh.in_space, places, dtypes[handle])
        return arrived

    def _argument(
        self, tensor: int, layout: Layout, mesh: Mesh, numbers: Sequence[int], variable: str | None = None
    ) -> list[Ref]:
        spec, whole = self.graph.tensors[tensor], is_whole(layout)
        made: dict[int, Ref] = {}  # parts that hold the same piece are given it once
        alike = [-1 if whole else mesh.first_alike(number, layout) for number in numbers]
        for first, number in zip(alike, numbers, strict=True):
            if first not in made:
                shape = spec.shape if whole or spec.shape is None else mesh.local_shape(spec.shape, layout, number)
                made[first] = self.writer.argument("argument", spec.dtype, shape, variable)
                self.emitted.arguments.append((tensor, -1 if whole else number))
        return [made[first] for first in alike]

    def distinct(self, layout: Layout) -> list[int]:
        """The places of the parts that hold different pieces of what lies so, the first of each."""
        return [self.parts.index(part) for part in self.mesh.distinct(self.parts, layout)]

    def _arrange(self, arrived: dict[int, list[Ref]]) -> None:
        """Inputs arrive over all parts as if they were one axis; here they get the layouts that the plan reads."""
        for (tensor, refs), arrival in zip(arrived.items(), self.plan.inputs, strict=True):
            (layout,) = self.plan.choices[self.graph.tensors[tensor].producer].outputs
            if self.arrival != self.mesh and arrival[0].is_split and self.mesh.in_space != self.mesh.flat:
                refs = self.step.boxer.arrange(refs, arrival[0], layout, self.graph.tensors[tensor].shape or ())
            self.step.held[tensor, layout] = refs

    def _write_op(self, index: int) -> None:
        op, choice = self.graph.ops[index], self.plan.choices[index]
        if op.type == "Placeholder" or self.graph.is_constant(index):
            self._nodes.append([[]] * len(self.parts))
            return
        frame = self.control.frame(op.region)
        if op.type in CONTROL:
            self._note(index, self.control.write(index, self._controls(op, range(len(self.parts)))), frame)
            return
        inputs = [self.refs(t, layout, frame) for t, layout in zip(op.inputs, choice.inputs, strict=True)]
        if op.type == MERGE_ROWS and choice.inputs != choice.outputs:
            self._merge_rows(index, inputs, frame)
            return
        whole = is_whole(*choice.inputs, *choice.outputs)
        view, rule = op_view(self.graph, index), registry.get(op.type)
        # Ops that a pass made may have no kernel under their type: their rule writes them, whole or not.
        itself = rule is None or (whole and op.payload is not None and not (rule.always and view.is_static))
        lower = None if rule is None or itself else rule.lower
        gate = frame.boxer.gate if index in self._effects else []
        on_host = op.type == TO_HOST or not self._on_host.isdisjoint(op.inputs)
        results: dict[int, list[Ref]] = {}
        nodes: dict[int, list[str]] = {}
        first = self._sharers(choice)
        for k in sorted(set(first)):
            lowering = PartLowering(
                frame.writer,
                view,
                op,
                choice,
                self.mesh,
                self.parts[k],
                HOST if on_host else self.devices[k],
                [held[k] for held in inputs],
                [*gate, *self._controls(op, [place for place, owner in enumerate(first) if owner == k])],
            )
            results[k] = lower(lowering) if lower else lowering.same()
            nodes[k] = lowering.nodes
            self.emitted.on_host.update(results[k] if op.type == TO_HOST else ())
        for slot, (tensor, layout) in enumerate(zip(op.outputs, choice.outputs, strict=True)):
            frame.held[tensor, layout] = [results[k][slot] for k in first]
        self._note(index, [nodes[k] for k in first], frame)

    def _merge_rows(self, index: int, inputs: list[list[Ref]], frame: Frame) -> None:
        """An op whose results come from other parts."""
        op, choice = self.graph.ops[index], self.plan.choices[index]
        shapes = [self.graph.tensors[tensor].shape or () for tensor in op.inputs]
        ids, rows = map(Boxing, inputs, choice.inputs, choice.outputs, shapes)
        self._note(index, [[]] * len(self.parts), frame)
        made = frame.boxer.gather_rows(ids, rows, self._op_depths[index])
        for tensor, layout, refs in zip(op.outputs, choice.outputs, made, strict=True):
            frame.held[tensor, layout] = refs
        self._op_depths[index] += sum(a != b for a, b in zip(ids.source, ids.target, strict=True))
        frame.depth = max(frame.depth, self._op_depths[index])

    def _sharers(self, choice: Choice) -> list[int]:
        """For each part the place of the part that does the op for it."""
        places: dict[int, int] = {}
        alike = (self.mesh.first_alike(part, *choice.inputs, *choice.outputs) for part in self.parts)
        return [places.setdefault(first, place) for place, first in enumerate(alike)]

    def _note(self, index: int, nodes: list[list[str]], frame: Frame) -> None:
        """Takes down the nodes that an op was written as, for each part."""
        op, choice = self.graph.ops[index], self.plan.choices[index]
        self._nodes.append(nodes)
        frame.op_of.update((name, index) for names in nodes for name in names)
        frame.own.update(op.outputs)
        if index in self._effects:
            frame.must_run += [name for names in nodes for name in names]
        depths = [self.depth(t, layout) for t, layout in zip(op.inputs, choice.inputs, strict=True)]
        depths += [self._op_depths[c] for c in op.controls]
        depths += [self.control.frame(region).depth for region in op.attrs.get("regions", ()) if op.type in CONTROL]
        self._op_depths[index] = max(depths, default=0)
        frame.depth = max(frame.depth, self._op_depths[index])

    def _controls(self, op: Op, places: Sequence[int]) -> list[str]:
        """The nodes that an op waits for. What is in a body waits as the body does, and that for all that is in it."""
        ops = [c for c in op.controls if self.graph.ops[c].region == op.region]
        return [name for index in ops for k in places for name in self._nodes[index][k]]

    def depth(self, tensor: int, layout: Layout) -> int:
        """Collectives that a tensor in a layout depends on: the longest chain of them."""
        depth, move = self._op_depths[self.graph.tensors[tensor].producer], self.moves.get((tensor, layout))
        while move is not None:
            depth += move.collectives
            move = self.moves.get((tensor, move.source))
        return depth

    def refs(self, tensor: int, layout: Layout, frame: Frame) -> list[Ref]:
        """The parts of a tensor in a layout, in a frame; boxed at the first demand."""
        held = frame.held.get((tensor, layout))
        if held is None:
            if tensor in self.graph.constants:
                held = self._constant(self.graph.constants[tensor], self.graph.tensors[tensor].dtype, layout, frame)
            elif self.control.comes_from_outside(tensor, layout, frame):
                held = self.control.brought(tensor, layout, frame)
            else:
                move = self.moves[tensor, layout]
                refs = self.refs(tensor, move.source, frame)
                shape = self.graph.tensors[tensor].shape or ()
                depth = self.depth(tensor, move.source)
                held = frame.boxer.box(refs, move.source, layout, shape, depth)
                frame.depth = max(frame.depth, depth + move.collectives)
            frame.held[tensor, layout] = held
        return held

    def _constant(self, value: np.ndarray, dtype: str, layout: Layout, frame: Frame) -> list[Ref]:
        """A known value is cut while writing the graph."""
        refs = []
        for part, device in zip(self.parts, self.devices, strict=True):
            pieces = self.mesh.pieces(value.shape, layout, part)
            local = value[tuple(slice(start, start + length) for start, length in pieces)]
            places = zip(self.mesh.coordinate(part), layout, strict=True)
            if any(sbp.kind == "P" and place for place, sbp in places):
                local = np.zeros_like(local)
            refs.append(frame.writer.const(local, dtype, device))
        return refs
