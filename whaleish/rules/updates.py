"""Scatters into variables: variable, indices, updates.

A part that holds some of the rows goes through all updates, and for those of other parts' rows does to its first row
what changes nothing: adds zero, or takes the maximum with the lowest number.
"""

from __future__ import annotations

from whaleish.rules.forms import names
from whaleish.rules.gather import depth_of
from whaleish.rules.ids import keep_own, local_ids, local_places
from whaleish.rules.neutral import neutral
from whaleish.rules.rule import Lowering, OpView, Ref, Signature, registry
from whaleish.rules.variables import lower_unless_empty
from whaleish.sbp import B, P, S


def _split_here(part: Lowering, depth: int) -> bool:
    """Whether one of the dims that the indices address is split, and the part has elements."""
    return 0 not in part.shape_in(0) and any(sbp.is_split and sbp.dim < depth for sbp in part.layout_in(0))


def _own_rows(part: Lowering) -> list[Ref]:
    if not _split_here(part, 1):
        return lower_unless_empty(part)
    op, rows, total = part.op, part.shape_in(0)[0], (part.op.inputs[0].shape or ())[0]
    ids, own = local_ids(part, part.input(1), op.inputs[1].dtype, part.start_in(0)[0], rows, total, foreign=0)
    return part.same({1: ids, 2: _kept(part, own, part.shape_in(1), 1)})


def _own_places(part: Lowering) -> list[Ref]:
    op, depth = part.op, depth_of(part.op, 1)
    if not _split_here(part, depth):
        return lower_unless_empty(part)
    counts, totals = part.shape_in(0)[:depth], (op.inputs[0].shape or ())[:depth]
    places, own = local_places(part, part.input(1), op.inputs[1].dtype, part.start_in(0)[:depth], counts, totals)
    return part.same({1: places, 2: _kept(part, own, part.shape_in(1)[:-1], depth)})


def _kept(part: Lowering, own: Ref, named: tuple[int, ...], depth: int) -> Ref:
    """This part's updates, and what changes nothing in place of the others."""
    dtype = part.op.inputs[2].dtype
    shape = (*named, *(1 for _ in part.shape_in(0)[depth:]))
    return keep_own(part, part.input(2), dtype, own, shape, neutral(part.op.type, dtype))


@registry.register("ResourceScatterUpdate", lower=lower_unless_empty)
def update(op: OpView) -> list[Signature]:
    """No update leaves a row as it is, so rows are not split."""
    return other_dims(op, 1, op.inputs[1].rank)


@registry.register(*(f"ResourceScatter{name}" for name in names("Div Max Min Mul")), lower=_own_rows)
def extremes(op: OpView) -> list[Signature]:
    return addressed(op, 1) + other_dims(op, 1, op.inputs[1].rank)


@registry.register("ResourceScatterAdd", "ResourceScatterSub", lower=_own_rows)
def additions(op: OpView) -> list[Signature]:
    indices = op.inputs[1].rank
    return addressed(op, 1) + other_dims(op, 1, indices) + sums(op, indices)


@registry.register("ResourceScatterNdUpdate", lower=lower_unless_empty)
def update_places(op: OpView) -> list[Signature]:
    return other_dims(op, depth_of(op, 1), op.inputs[1].rank - 1) if op.inputs[1].rank > 0 else []


@registry.register("ResourceScatterNdMax", "ResourceScatterNdMin", lower=_own_places)
def extremes_of_places(op: OpView) -> list[Signature]:
    return addressed(op, depth_of(op, 1)) + update_places(op)


@registry.register("ResourceScatterNdAdd", "ResourceScatterNdSub", lower=_own_places)
def additions_to_places(op: OpView) -> list[Signature]:
    return extremes_of_places(op) + sums(op, op.inputs[1].rank - 1)


def addressed(op: OpView, depth: int) -> list[Signature]:
    """Splits of the dims that the indices address; one number for all updates goes to rows of any part."""
    return [Signature((S(dim), B, B), ()) for dim in range(min(depth, op.inputs[0].rank)) if op.inputs[2].rank > 0]


def other_dims(op: OpView, depth: int, index_rank: int) -> list[Signature]:
    """Splits of the dims behind the `depth` ones that the indices address; updates have them behind the indices'."""
    table, _, updates = op.inputs
    return [
        Signature((S(dim), B, S(dim - depth + index_rank) if updates.rank else B), ())
        for dim in range(depth, table.rank)
    ]


def sums(op: OpView, index_rank: int) -> list[Signature]:
    """A variable of summands takes each update in one summand, or a summand of each update in all."""
    whole = not op.inputs[2].rank  # One number for all updates.
    found = [Signature((P, S(dim), B if whole else S(dim)), ()) for dim in range(index_rank)]
    return [*found, Signature((P, B, P), ())]
