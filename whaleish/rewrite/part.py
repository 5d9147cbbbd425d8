"""One part of one op: what a rule's lowering works with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from whaleish.graph import Op
from whaleish.mesh import Mesh
from whaleish.planner.plan import Choice
from whaleish.rules import OpView
from whaleish.sbp import Layout
from whaleish.writer import FunctionWriter, Ref


class PartLowering:
    """Implements `whaleish.rules.rule.Lowering` by writing nodes."""

    def __init__(
        self,
        writer: FunctionWriter,
        op: OpView,
        source: Op,
        choice: Choice,
        mesh: Mesh,
        part: int,
        device: str,
        refs: Sequence[Ref],
        controls: Sequence[str],
    ) -> None:
        self.op = op
        self._writer, self._source, self._choice = writer, source, choice
        self._mesh, self._part, self._device = mesh, part, device
        self._refs, self._controls = refs, controls
        self.nodes: list[str] = []

    def input(self, index: int) -> Ref:
        return self._refs[index]

    def layout_in(self, index: int) -> Layout:
        return self._choice.inputs[index]

    def layout_out(self, index: int) -> Layout:
        return self._choice.outputs[index]

    def shape_in(self, index: int) -> tuple[int, ...]:
        return tuple(length for _, length in self._pieces(self.op.inputs[index].shape, self._choice.inputs[index]))

    def shape_out(self, index: int) -> tuple[int, ...]:
        return tuple(length for _, length in self._pieces(self.op.outputs[index].shape, self._choice.outputs[index]))

    def start_in(self, index: int) -> tuple[int, ...]:
        return tuple(start for start, _ in self._pieces(self.op.inputs[index].shape, self._choice.inputs[index]))

    def start_out(self, index: int) -> tuple[int, ...]:
        return tuple(start for start, _ in self._pieces(self.op.outputs[index].shape, self._choice.outputs[index]))

    def const(self, value: Any, dtype: str) -> Ref:
        return self._writer.const(value, dtype, self._device)

    def emit(self, type: str, inputs: Sequence[Ref], /, outputs: int = 1, **attrs: Any) -> Any:
        made = self._writer.add(type, inputs, device=self._device, controls=self._controls, **attrs)
        return self._note(made) if outputs != 1 else self._note(made)[0]

    def same(self, inputs: Mapping[int, Ref] | None = None, **attrs: Any) -> list[Ref]:
        refs = list(self._refs)
        for index, ref in (inputs or {}).items():
            refs[index] = ref
        where = {"device": self._device, "controls": self._controls}
        if self._source.payload is None:
            own = {key: value for key, value in self.op.attrs.items() if value is not None} | attrs
            return self._note(self._writer.add(self.op.type, refs, **where, **own))
        return self._note(self._writer.copy(self._source.payload, refs, **where, **attrs))

    def _note(self, made: list[Ref]) -> list[Ref]:
        node = self._writer.function_def.node_def[-1]
        if self._source.again:  # no two nodes that differ in an attribute are merged
            node.attr["_whaleish_again"].i = self._source.again
        self.nodes.append(node.name)
        return made

    def _pieces(self, shape: tuple[int, ...] | None, layout: Layout) -> tuple[tuple[int, int], ...]:
        assert shape is not None, f"{self.op.type} has a rule for a tensor of unknown shape"
        return self._mesh.pieces(shape, layout, self._part)
