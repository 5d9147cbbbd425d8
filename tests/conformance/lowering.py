"""The `Lowering` protocol on eager kernels, and running every part of one op with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

import whaleish.rules
from tests.conformance.kernels import execute
from whaleish.mesh import Mesh
from whaleish.rules.rule import OpView, Rule, Signature, TensorSpec
from whaleish.sbp import Layout, S

registry = whaleish.rules.registry


@dataclass
class EagerLowering:
    """The `Lowering` protocol carried out by TensorFlow's eager kernels, for one part."""

    op: OpView
    mesh: Mesh
    part: int
    refs: Sequence[Any]
    layouts_in: Sequence[Layout]
    layouts_out: Sequence[Layout]

    def input(self, index: int) -> Any:
        return self.refs[index]

    def layout_in(self, index: int) -> Layout:
        return self.layouts_in[index]

    def layout_out(self, index: int) -> Layout:
        return self.layouts_out[index]

    def shape_in(self, index: int) -> tuple[int, ...]:
        return self._piece(self.op.inputs[index], self.layouts_in[index], 1)

    def shape_out(self, index: int) -> tuple[int, ...]:
        return self._piece(self.op.outputs[index], self.layouts_out[index], 1)

    def start_in(self, index: int) -> tuple[int, ...]:
        return self._piece(self.op.inputs[index], self.layouts_in[index], 0)

    def start_out(self, index: int) -> tuple[int, ...]:
        return self._piece(self.op.outputs[index], self.layouts_out[index], 0)

    def _piece(self, spec: TensorSpec, layout: Layout, which: int) -> tuple[int, ...]:
        if spec.shape is None:
            raise ValueError("the shape of this tensor is unknown")
        return tuple(piece[which] for piece in self.mesh.pieces(spec.shape, layout, self.part))

    def const(self, value: Any, dtype: str) -> Any:
        return tf.constant(value, tf.as_dtype(dtype))

    def emit(self, type: str, inputs: Sequence[Any], outputs: int = 1, **attrs: Any) -> Any:
        made = execute(type, inputs, attrs)
        if len(made) != outputs:
            raise ValueError(f"{type} has {len(made)} outputs, and {outputs} were asked for")
        return made[0] if outputs == 1 else made

    def same(self, inputs: Mapping[int, Any] | None = None, **attrs: Any) -> list[Any]:
        refs = [(inputs or {}).get(index, ref) for index, ref in enumerate(self.refs)]
        return execute(self.op.type, refs, {**self.op.attrs, **attrs})


def scaled(signature: Signature, factor: int) -> Signature:
    """The signature with all its units multiplied."""

    def scale(sbps: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(S(s.dim, s.unit * factor) if s.is_split else s for s in sbps)

    return signature._replace(inputs=scale(signature.inputs), outputs=scale(signature.outputs))


def layouts(signatures: Sequence[Signature]) -> tuple[list[Layout], list[Layout]]:
    """Layouts of inputs and outputs on a mesh, from one signature per axis."""
    return (
        [tuple(entry) for entry in zip(*(s.inputs for s in signatures), strict=True)],
        [tuple(entry) for entry in zip(*(s.outputs for s in signatures), strict=True)],
    )


def fits(op: OpView, signatures: Sequence[Signature], mesh: Mesh) -> bool:
    """Whether every part can be cut: lengths are whole units, and no part is empty where the rule forbids that."""
    rule = registry.get(op.type)
    ins, outs = layouts(signatures)
    for spec, layout in zip((*op.inputs, *op.outputs), (*ins, *outs), strict=True):
        if not any(sbp.is_split for sbp in layout):
            continue
        if any(sbp.is_split and sbp.dim >= spec.rank for sbp in layout):
            raise ValueError(f"{op.type}: {layout} splits a dim that a tensor of shape {spec.shape} does not have")
        for part in range(mesh.size):
            try:
                local = mesh.local_shape(spec.shape, layout, part)
            except ValueError:
                return False
            empty = any(not n and whole for n, whole in zip(local, spec.shape, strict=True))
            if empty and rule is not None and not rule.split_empty:
                return False
    return True


def run_parts(
    op: OpView,
    rule: Rule | None,
    ins: Sequence[Layout],
    outs: Sequence[Layout],
    mesh: Mesh,
    refs: Sequence[Sequence[Any]],
) -> list[list[Any]]:
    """Runs the op on every part; `refs[part]` are its local inputs. Checks the shapes of what comes out."""
    made = []
    for part in range(mesh.size):
        lowering = EagerLowering(op, mesh, part, refs[part], ins, outs)
        results = rule.lower(lowering) if rule is not None and rule.lower is not None else lowering.same()
        assert len(results) == len(op.outputs), f"{op.type}: {len(results)} outputs, {len(op.outputs)} expected"
        for index, result in enumerate(results):
            expected = lowering.shape_out(index)
            variant = op.outputs[index].dtype == "variant"  # its shape is that of what it holds
            assert variant or tuple(result.shape) == expected, (
                f"{op.type} output {index} of part {part} has shape {tuple(result.shape)}; its layout "
                f"{outs[index]} of {op.outputs[index].shape} says {expected}"
            )
            assert result.dtype.name == op.outputs[index].dtype, f"{op.type} output {index} is {result.dtype.name}"
        made.append(list(results))
    return made
