"""Rows that are added up by id: where parts have different ones, each merges its repeated ids before any is sent.

    ids [N], rows [N, ...] ── MergeRows ── ids' [N], rows' [N, ...] ── UnsortedSegmentSum, ResourceScatterAdd, ...

Capture writes a `MergeRows` before every op that adds rows by id. Its results stand for the same sum by id as what it
is given; on one device they are that. No kernel has its name.
"""

from __future__ import annotations

from math import prod

from whaleish.rules.forms import numeric, width
from whaleish.rules.rule import Lowering, OpView, Ref, Signature, TensorSpec, registry
from whaleish.sbp import B, P, S

MERGE_ROWS = "MergeRows"

ADDED_BY_ID = {"ResourceScatterAdd": (1, 2), "ResourceScatterSub": (1, 2), "UnsortedSegmentSum": (1, 0)}
"""Op type -> its inputs that are ids and rows."""

_SENT = 0.9
"""How many of the rows are taken to be sent, when plans are compared: some repeat in any batch worth the name."""


def mergeable(ids: TensorSpec, rows: TensorSpec) -> bool:
    """Whether there is anything to merge, and the rows' sum by id is the only thing that counts."""
    many = ids.rank == 1 and ids.shape != (1,) and ids.shape != (0,)
    return many and rows.shape is not None and rows.shape[:1] == ids.shape and numeric(rows)


def _as_given(part: Lowering) -> list[Ref]:
    return [part.input(0), part.input(1)]


@registry.register(MERGE_ROWS, lower=_as_given)
def merge_rows(op: OpView) -> list[Signature]:
    """Rows of each part's own; the same gathered from all, which whoever moves tensors carries out; other dims."""
    ids, rows = op.inputs
    sent = sum(prod(spec.shape or ()) * width(spec) for spec in (ids, rows))
    found = [Signature((B, S(dim)), (B, S(dim))) for dim in range(1, rows.rank)]
    found += [Signature((S(0), S(0)), (S(0), S(0))), Signature((B, P), (B, P))]
    # Gathering costs half of what all-reducing does, from which `inner_bytes` is counted.
    return [*found, Signature((S(0), S(0)), (B, B), inner_bytes=int(sent * _SENT / 2))]
