"""Small logical graphs written by hand."""

from __future__ import annotations

from whaleish.cluster import Cluster
from whaleish.graph import FORWARD, LogicalGraph, Variable
from whaleish.mesh import Axis
from whaleish.planner.view import AxisView

Shape = tuple[int, ...]


class Graph:
    """Ops are added one by one; each call returns the number of the op's only output."""

    def __init__(self) -> None:
        self.logical = LogicalGraph()

    def argument(self, *shape: int, dtype: str = "float32") -> int:
        made = self.add("Placeholder", [], shape, dtype=dtype)
        self.logical.inputs += (made,)
        return made

    def variable(self, *shape: int) -> int:
        """A float32 variable; returns the number of its handle."""
        made = self.add("Placeholder", [], shape, dtype="resource")
        name = f"v{len(self.logical.variables)}"
        self.logical.variables += (Variable(name, made, shape, "float32", True),)
        return made

    def add(
        self, type: str, inputs: list[int], shape: Shape | None, dtype: str = "float32", phase: str = FORWARD, **attrs
    ) -> int:
        name = f"{type}{len(self.logical.ops)}"
        op = self.logical.add(type, tuple(inputs), [(shape, dtype)], name=name, attrs=attrs, phase=phase)
        return op.outputs[0]

    def op_of(self, tensor: int) -> int:
        return self.logical.tensors[tensor].producer

    def view(self, size: int = 2) -> AxisView:
        return AxisView(self.logical, Axis("d", size), Cluster(size))
