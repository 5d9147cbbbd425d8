"""Ops that join tensors along a dim or take one apart: concat, split, pack, unpack."""

from __future__ import annotations

from whaleish.rules.movement import (
    COPYING,
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
