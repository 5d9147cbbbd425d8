"""Subgraphs: some of a step's ops as a step of their own, which is given what the others make."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from whaleish.graph import LogicalGraph, Op, Variable
from whaleish.mesh import Mesh
from whaleish.planner.plan import Choice, Plan
from whaleish.sbp import Layout


class Subgraph:
    """Copies ops of one graph into another.

    Attributes:
      tensors, ops: number in the old graph -> in the new one.
    """

    def __init__(self, old: LogicalGraph, plan: Plan) -> None:
        self.old, self.plan = old, plan
        self.graph = LogicalGraph(scopes=old.scopes, regions=old.regions)
        self.tensors: dict[int, int] = {}
        self.ops: dict[int, int] = {}
        self.arrivals: list[Layout] = []
        self.stored: list[tuple[str, Layout]] = []
        self.choices: list[Choice] = []
        self._origin: dict[int, int] = {}
        self.graph.source = lambda index: old.source(self._origin[index]) if index in self._origin else ""

    def argument(self, tensor: int, layout: Layout) -> None:
        """A tensor that comes from elsewhere."""
        self._placeholder(tensor, layout)
        self.graph.inputs += (self.tensors[tensor],)
        self.arrivals.append(layout)

    def variable(self, variable: Variable, layout: Layout, mesh: Mesh) -> None:
        self._placeholder(variable.handle, mesh.at_all_times(layout))
        self.graph.variables += (replace(variable, handle=self.tensors[variable.handle]),)
        self.stored.append((variable.name, layout))

    def copy(self, index: int) -> None:
        """An op, reading what has been copied."""
        if index in self.ops:
            return
        op, choice = self.old.ops[index], self.plan.choices[index]
        constant = self.old.is_constant(index)
        self._add(
            op,
            inputs=() if constant else tuple(self.tensors[tensor] for tensor in op.inputs),
            controls=() if constant else tuple(self.ops[c] for c in op.controls if c in self.ops),
        )
        self.ops[index] = len(self.graph.ops) - 1
        self._origin[self.ops[index]] = index
        self.choices.append(choice._replace(inputs=()) if constant else choice)
        for tensor in op.outputs if constant else ():
            self.graph.constants[self.tensors[tensor]] = self.old.constants[tensor]

    def _placeholder(self, tensor: int, layout: Layout) -> None:
        producer = self.old.ops[self.old.tensors[tensor].producer]
        name = producer.name if producer.type == "Placeholder" else f"{producer.name}_{tensor}"
        self._add(Op(name, "Placeholder", (), (tensor,)), (), ())
        self.choices.append(Choice((), (layout,)))

    def _add(self, op: Op, inputs: Iterable[int], controls: Iterable[int]) -> None:
        outputs: list[int] = []
        for tensor in op.outputs:
            outputs.append(len(self.graph.tensors))
            self.tensors[tensor] = outputs[-1]
            spec = self.old.tensors[tensor]
            self.graph.tensors.append(replace(spec, producer=len(self.graph.ops), slot=len(outputs) - 1))
        self.graph.ops.append(replace(op, inputs=tuple(inputs), outputs=tuple(outputs), controls=tuple(controls)))
