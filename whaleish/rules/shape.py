"""Ops that give a tensor another shape and keep its elements: reshape, transpose, broadcast, tile, fill, ranges."""

from __future__ import annotations

import math

from whaleish.rules.movement import (
    COPYING,
    axis_of,
    carried,
    local_shape_operand,
    partly,
    place,
    when_divided,
)
from whaleish.rules.rule import Lowering, OpView, Ref, Signature, registry
from whaleish.sbp import S, Sbp


def reshape_pairs(before: tuple[int, ...], after: tuple[int, ...]) -> list[tuple[Sbp, Sbp]]:
    """The splits that a reshape carries over.

    Dims i and j correspond where as many elements lie outside i as outside j: then both cut the same run of elements,
    and a cut must fall on a multiple of what is inside either.

        [4, 6, 5] -> [24, 5]    S(0) -> S(0:6),  S(2) -> S(1)
        [6, 4] -> [4, 6]        S(0:3) -> S(0:2): two units of 12 elements

    A dim of size 1 is the outermost too: a last batch of 1 stays split (all but one part are empty).
    """
    if 0 in before or 0 in after:
        return [(S(0), S(0))] if before[:1] == after[:1] == (0,) else []
    pairs = []
    for i, n in enumerate(before):
        for j, m in enumerate(after):
            if math.prod(before[:i]) != math.prod(after[:j]):
                continue
            inside, inside_after = math.prod(before[i + 1 :]), math.prod(after[j + 1 :])
            unit = math.lcm(inside, inside_after)
            if n * inside > unit or i == j == 0:
                pairs.append((S(i, unit // inside), S(j, unit // inside_after)))
            assert n * inside == m * inside_after
    return pairs


@registry.register("Reshape", lower=local_shape_operand(1))
def reshape(op: OpView) -> list[Signature]:
    before, after = op.inputs[0].shape, op.outputs[0].shape
    if before is None or after is None:
        return []
    found = [place(op, {0: s}, t) for s, t in reshape_pairs(before, after)]
    return found + partly(op, [0], COPYING)


@when_divided
def _copy(low: Lowering) -> list[Ref]:
    """The logical shape has been seen to be right when the step was traced."""
    return [low.emit("Identity", [low.input(0)], T=low.op.inputs[0].dtype)]


@registry.register("EnsureShape", lower=_copy)
def ensure_shape(op: OpView) -> list[Signature]:
    return carried(op, ((dim, dim) for dim in range(op.inputs[0].rank)), COPYING)


@registry.register("ExpandDims")
def expand_dims(op: OpView) -> list[Signature]:
    axis = axis_of(op, 1, op.outputs[0].rank)
    if axis is None:
        return []
    return carried(op, ((dim, dim + (dim >= axis)) for dim in range(op.inputs[0].rank)), COPYING)


def _squeezed(op: OpView) -> list[int]:
    shape = op.inputs[0].shape or ()
    named = op.attrs.get("squeeze_dims") or ()
    return sorted(dim % len(shape) for dim in named) if named else [d for d, n in enumerate(shape) if n == 1]


@when_divided
def _squeeze_by_name(low: Lowering) -> list[Ref]:
    """A dim that is 1 long only locally must stay; to name no dim means all that are."""
    gone = _squeezed(low.op)
    return low.same(squeeze_dims=gone) if gone else [low.emit("Identity", [low.input(0)], T=low.op.inputs[0].dtype)]


@registry.register("Squeeze", lower=_squeeze_by_name)
def squeeze(op: OpView) -> list[Signature]:
    gone = _squeezed(op)
    kept = [dim for dim in range(op.inputs[0].rank) if dim not in gone]
    return carried(op, zip(kept, range(len(kept)), strict=True), COPYING)


@registry.register("Transpose", "ConjugateTranspose")
def transpose(op: OpView) -> list[Signature]:
    perm = op.constants[1]
    partial = COPYING if op.type == "Transpose" else COPYING[:1]
    pairs = [] if perm is None else [(int(source), dim) for dim, source in enumerate(perm)]
    return carried(op, pairs, partial)


@registry.register("BroadcastTo", lower=local_shape_operand(1))
def broadcast_to(op: OpView) -> list[Signature]:
    before, after = op.inputs[0].shape, op.outputs[0].shape
    if before is None or after is None:
        return []
    offset = len(after) - len(before)
    found = []
    for dim, n in enumerate(after):
        source = dim - offset
        repeats = source < 0 or (before[source] == 1 and n != 1)
        found.append(place(op, {} if repeats else {0: S(source)}, S(dim)))
    return found + partly(op, [0], COPYING)


@registry.register("Fill", lower=local_shape_operand(0))
def fill(op: OpView) -> list[Signature]:
    found = [place(op, {}, S(dim)) for dim in range(op.outputs[0].rank)]
    return found + partly(op, [1], COPYING)


@registry.register("Empty", lower=local_shape_operand(0))
def empty(op: OpView) -> list[Signature]:
    return [place(op, {}, S(dim)) for dim in range(op.outputs[0].rank)]


@when_divided
def _tile_locally(low: Lowering) -> list[Ref]:
    """The multiples that lead from the local input to the local output."""
    whole = zip(low.op.inputs[0].shape or (), low.op.outputs[0].shape or (), strict=True)
    local = zip(low.shape_in(0), low.shape_out(0), strict=True)
    multiples = [
        m // n if n else (after // before if before else 1)
        for (n, m), (before, after) in zip(local, whole, strict=True)
    ]
    return low.same({1: low.const(multiples, low.op.inputs[1].dtype)})


@registry.register("Tile", lower=_tile_locally)
def tile(op: OpView) -> list[Signature]:
    """An untiled dim stays split; a tiled one is split between copies of the whole input dim."""
    before, after = op.inputs[0].shape, op.outputs[0].shape
    if before is None or after is None or 0 in before:
        return []
    found = [
        place(op, {0: S(dim)} if n == m else {}, S(dim, n if n != m else 1))
        for dim, (n, m) in enumerate(zip(before, after, strict=True))
    ]
    return found + partly(op, [0], COPYING)


@registry.register("Bitcast")
def bitcast(op: OpView) -> list[Signature]:
    """To a wider or narrower type a last dim goes or comes; the ones before it stay. Sums of bits mean nothing."""
    return carried(op, ((dim, dim) for dim in range(min(op.inputs[0].rank, op.outputs[0].rank))))


@when_divided
def _part_of_range(low: Lowering) -> list[Ref]:
    start, _, delta = (int(c) for c in low.op.constants if c is not None)
    first = start + low.start_out(0)[0] * delta
    dtype = low.op.inputs[0].dtype
    limit = first + low.shape_out(0)[0] * delta
    return [low.emit("Range", [low.const(v, dtype) for v in (first, limit, delta)], Tidx=dtype)]


@registry.register("Range", lower=_part_of_range)
def integer_range(op: OpView) -> list[Signature]:
    """Floating point ranges add up their steps, so a later start would round otherwise: they stay whole."""
    if op.inputs[0].dtype not in ("int32", "int64") or any(c is None for c in op.constants):
        return []
    return [place(op, {}, S(0))]
