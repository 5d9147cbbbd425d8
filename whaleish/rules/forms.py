"""What the rules of several families share: aligned splits, attributes and constants in plain form."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from whaleish.rules.rule import Lowering, OpView, Ref, Signature, TensorSpec
from whaleish.sbp import B, S, Sbp

FLOATS = {"bfloat16": 2, "float16": 2, "half": 2, "float32": 4, "float64": 8}
"""Real floating dtypes and their width in bytes."""

_NOT_NUMBERS = frozenset({"bool", "string", "resource"})


Lower = Callable[[Lowering], list[Ref]]
"""Carries out one part of an op."""


def names(text: str) -> tuple[str, ...]:
    """Op types, written apart by white space."""
    return tuple(text.split())


def numeric(spec: TensorSpec) -> bool:
    """Whether the tensor holds numbers, so that it can be a sum or a maximum of parts (a list: of its elements)."""
    return spec.dtype not in _NOT_NUMBERS


def real(spec: TensorSpec) -> bool:
    """Whether the tensor holds ordered numbers, so that it can be a maximum of parts."""
    return numeric(spec) and not spec.dtype.startswith("complex")


def width(spec: TensorSpec) -> int:
    """Bytes of one number."""
    return FLOATS.get(spec.dtype) or np.dtype(spec.dtype).itemsize


def broadcast_splits(inputs: Sequence[TensorSpec], output: TensorSpec) -> list[tuple[tuple[Sbp, ...], Sbp]]:
    """For each dim of `output`, whose shape is that of `inputs` broadcast: its split, and how the inputs are held.

    An input that lacks the dim, or has size 1 where the output has more, is whole.
    """
    if output.shape is None or any(spec.shape is None for spec in inputs):
        return []
    found = []
    for dim, length in enumerate(output.shape):
        entries = []
        for spec in inputs:
            own = dim - output.rank + spec.rank
            entries.append(S(own) if own >= 0 and spec.shape and spec.shape[own] == length else B)
        found.append((tuple(entries), S(dim)))
    return found


def all_split(op: OpView) -> list[Signature]:
    """Each dim of an op whose inputs broadcast to the shape of its outputs, which all have one shape."""
    count = len(op.outputs)
    return [Signature(inputs, (output,) * count) for inputs, output in broadcast_splits(op.inputs, op.outputs[0])]


def constant_ints(op: OpView, index: int) -> tuple[int, ...] | None:
    """The value of an integer input (a scalar as one element); None where it is not known before running."""
    value = op.constants[index]
    return None if value is None else tuple(int(item) for item in value.ravel())


def reduced_dims(op: OpView, index: int, rank: int) -> tuple[int, ...] | None:
    """The dims named by an operand of axes, counted from the front, ascending; None where they are not known."""
    dims = constant_ints(op, index)
    return None if dims is None or rank < 0 else tuple(sorted({dim % rank for dim in dims})) if rank else ()


def channel_dim(op: OpView, rank: int, default: str = "NHWC") -> int:
    """Where the attribute `data_format` puts the channels of a batch of images (volumes, sequences)."""
    text = op.attrs.get("data_format", default)
    text = text.decode() if isinstance(text, bytes) else text
    return 1 if text.startswith("NC") else rank - 1


def at(count: int, *indices: int, sbp: Sbp) -> tuple[Sbp, ...]:
    """`sbp` at some of `count` places, B at the others."""
    return tuple(sbp if index in indices else B for index in range(count))


def zeros(part: Lowering, index: int) -> Ref:
    """Zeros in the local shape of an output."""
    dtype = part.op.outputs[index].dtype
    shape = part.const(part.shape_out(index), "int32")
    zero = part.const({"bool": False, "string": ""}.get(dtype, 0), dtype)
    return part.emit("Fill", [shape, zero], T=dtype, index_type="int32")


def unless_empty(lower: Lower) -> Lower:
    """For ops that sum products, or whose empty inputs make empty outputs: a part without elements needs no kernel.

    Many kernels refuse tensors without elements. A sum over nothing is zero.
    """

    def lower_or_zeros(part: Lowering) -> list[Ref]:
        op = part.op
        shapes = [part.shape_in(i) for i, spec in enumerate(op.inputs) if spec.shape is not None]
        shapes += [part.shape_out(i) for i in range(len(op.outputs))]
        if any(0 in shape for shape in shapes):
            return [zeros(part, i) for i in range(len(op.outputs))]
        return lower(part)

    return lower_or_zeros


def same(part: Lowering) -> list[Ref]:
    """The op as it is."""
    return part.same()
