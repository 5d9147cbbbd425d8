"""Helpers of the rules that move data: signatures by dim pairs, and lowerings that keep shapes local."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from whaleish.rules.forms import Lower, constant_ints, numeric, real, same, zeros
from whaleish.rules.rule import Lowering, OpView, Ref, Signature
from whaleish.sbp import PMAX, PMIN, B, P, S, Sbp

LINEAR = (P,)
"""Partial layouts that pass through a linear map."""
COPYING = (P, PMAX, PMIN)
"""Partial layouts that pass through an op whose every output element is a copy of one input element, or a constant
that all parts have."""


def place(op: OpView, inputs: Mapping[int, Sbp], *outputs: Sbp) -> Signature:
    """The signature in which the given inputs have the given layouts and the others are B.

    One output layout stands for all outputs.
    """
    layouts = tuple(inputs.get(index, B) for index in range(len(op.inputs)))
    return Signature(layouts, outputs * len(op.outputs) if len(outputs) == 1 else outputs)


def partly(op: OpView, data: Sequence[int], partial: Sequence[Sbp]) -> list[Signature]:
    """Signatures in which the `data` inputs and every output are partial alike, as far as their dtypes allow."""
    specs = [op.inputs[index] for index in data]
    allowed = [sbp for sbp in partial if all(map(numeric if sbp == P else real, specs))]
    return [place(op, dict.fromkeys(data, sbp), sbp) for sbp in allowed]


def carried(
    op: OpView,
    pairs: Iterable[tuple[int, int]],
    partial: Sequence[Sbp] = (),
    data: int = 0,
) -> list[Signature]:
    """Signatures in which dim `i` of the `data` input becomes dim `j` of every output, for each pair (i, j)."""
    return [place(op, {data: S(i)}, S(j)) for i, j in pairs] + partly(op, [data], partial)


def together(op: OpView, dims: Iterable[int], data: Sequence[int], partial: Sequence[Sbp] = ()) -> list[Signature]:
    """Signatures in which the `data` inputs and every output are split along the same dim, or are partial alike."""
    return [place(op, dict.fromkeys(data, S(dim)), S(dim)) for dim in dims] + partly(op, data, partial)


def equal_dims(op: OpView, data: int = 0, output: int = 0) -> list[int]:
    """Dims that are as long in an output as in the `data` input (both of the same rank): those an op like pad, slice
    or reverse of part of a dim leaves alone."""
    before, after = op.inputs[data].shape, op.outputs[output].shape
    if before is None or after is None:
        return []
    return [dim for dim, (n, m) in enumerate(zip(before, after, strict=True)) if n == m]


def dims_but(rank: int, taken: Iterable[int]) -> list[int]:
    """All dims of a tensor but those taken, which may be counted from the end."""
    taken = {dim % rank for dim in taken} if rank > 0 else set()
    return [dim for dim in range(rank) if dim not in taken]


def axis_of(op: OpView, index: int, rank: int) -> int | None:
    """The value of a constant scalar input that names a dim, counted from the front; None where it is unknown."""
    value = constant_ints(op, index)
    return None if value is None or rank < 1 else value[0] % rank


def is_divided(low: Lowering) -> bool:
    """Whether any input or output is split: if none is, every part does the op as it stands."""
    ins = (low.layout_in(index) for index in range(len(low.op.inputs)))
    outs = (low.layout_out(index) for index in range(len(low.op.outputs)))
    return any(sbp.is_split for layouts in (ins, outs) for layout in layouts for sbp in layout)


def when_divided(lower: Lower) -> Lower:
    """A lowering for parts; the op itself where nothing is split."""

    def guarded(low: Lowering) -> list[Ref]:
        return lower(low) if is_divided(low) else low.same()

    guarded.__doc__ = lower.__doc__
    return guarded


def local_shape_operand(index: int) -> Lower:
    """A lowering that gives the op the local shape of its output as its input number `index`."""

    @when_divided
    def lower(low: Lowering) -> list[Ref]:
        return low.same({index: low.const(low.shape_out(0), low.op.inputs[index].dtype)})

    return lower


def empty_as_zeros(lower: Lower = same) -> Lower:
    """For kernels that refuse tensors without elements: a part whose outputs are all empty makes them itself."""

    def guarded(low: Lowering) -> list[Ref]:
        if not is_divided(low):
            return low.same()
        shapes = [low.shape_out(index) for index in range(len(low.op.outputs))]
        if all(0 in shape for shape in shapes):
            return [zeros(low, index) for index in range(len(shapes))]
        return lower(low)

    return guarded
