"""Ops that join tensors along a dim or take one apart: concat, split, pack, unpack."""

from __future__ import annotations

from whaleish.rules.movement import (
    COPYING,
    LINEAR,
    axis_of,
    carried,
    dims_but,
    partly,
    place,
    together,
)
from whaleish.rules.rule import OpView, Signature, registry
from whaleish.sbp import S


@registry.register("ConcatV2")
def concat(op: OpView) -> list[Signature]:
    last = len(op.inputs) - 1
    rank = op.outputs[0].rank
    axis = axis_of(op, last, rank)
    dims = [] if axis is None else dims_but(rank, [axis])
    return together(op, dims, range(last), COPYING)


@registry.register("Concat")
def concat_first(op: OpView) -> list[Signature]:
    """Old form: the dim comes first."""
    rank = op.outputs[0].rank
    axis = axis_of(op, 0, rank)
    dims = [] if axis is None else dims_but(rank, [axis])
    return together(op, dims, range(1, len(op.inputs)), COPYING)


@registry.register("DynamicStitch", "ParallelDynamicStitch")
def stitch(op: OpView) -> list[Signature]:
    """N tensors of ids, then N of rows, ids + rest -> [rows] + rest, each row the last that is given for its id."""
    count = len(op.inputs) // 2
    ids, rows = op.inputs[:count], range(count, 2 * count)
    rest = range(1, op.outputs[0].rank)
    found = [place(op, {i: S(dim - 1 + ids[i - count].rank) for i in rows}, S(dim)) for dim in rest]
    return found + partly(op, rows, LINEAR)


@registry.register("Split")
def split(op: OpView) -> list[Signature]:
    return _split(op, data=1, operand=0)


@registry.register("SplitV")
def split_by_sizes(op: OpView) -> list[Signature]:
    return _split(op, data=0, operand=2)


def _split(op: OpView, data: int, operand: int) -> list[Signature]:
    rank = op.inputs[data].rank
    axis = axis_of(op, operand, rank)
    dims = [] if axis is None else dims_but(rank, [axis])
    return carried(op, ((dim, dim) for dim in dims), COPYING, data=data)


@registry.register("Pack")
def pack(op: OpView) -> list[Signature]:
    axis = int(op.attrs.get("axis", 0)) % max(op.outputs[0].rank, 1)
    everyone = range(len(op.inputs))
    found = [place(op, dict.fromkeys(everyone, S(dim)), S(dim + (dim >= axis))) for dim in range(op.inputs[0].rank)]
    return found + partly(op, everyone, COPYING)


@registry.register("Unpack")
def unpack(op: OpView) -> list[Signature]:
    rank = op.inputs[0].rank
    axis = int(op.attrs.get("axis", 0)) % max(rank, 1)
    return carried(op, ((dim, dim - (dim > axis)) for dim in dims_but(rank, [axis])), COPYING)
