"""Sums and extremes of rows by segment: the gradient of a gather, among others."""

from __future__ import annotations

from whaleish.rules.forms import names, numeric, real
from whaleish.rules.ids import local_ids
from whaleish.rules.movement import partly, place, when_divided
from whaleish.rules.rule import Lowering, OpView, Ref, Signature, registry
from whaleish.sbp import PMAX, PMIN, P, S, Sbp

_JOINED: dict[str, Sbp] = {"UnsortedSegmentSum": P, "UnsortedSegmentMax": PMAX, "UnsortedSegmentMin": PMIN}
"""How the results of parts that see different rows make the whole."""


@when_divided
def _own_segments(low: Lowering) -> list[Ref]:
    """Where the segments are split: those of this part; rows of others' segments are dropped, as id -1 says."""
    if not any(s.is_split and s.dim == 0 for s in low.layout_out(0)):
        return low.same()
    dtype, count, total = low.op.inputs[1].dtype, low.shape_out(0)[0], (low.op.outputs[0].shape or (0,))[0]
    ids, _ = local_ids(low, low.input(1), dtype, low.start_out(0)[0], count, total, foreign=-1)
    return low.same({1: ids, 2: low.const(count, low.op.inputs[2].dtype)})


@registry.register(*_JOINED, "UnsortedSegmentProd", lower=_own_segments)
def unsorted_segments(op: OpView) -> list[Signature]:
    """data = ids + rest -> out = [segments] + rest"""
    data, ids, joined = op.inputs[0], op.inputs[1], _JOINED.get(op.type)
    found = [place(op, {0: S(dim)}, S(dim - ids.rank + 1)) for dim in range(ids.rank, data.rank)]
    found.append(place(op, {}, S(0)))
    if joined is not None and (numeric if joined == P else real)(data):
        found += [place(op, {0: S(dim), 1: S(dim)}, joined) for dim in range(ids.rank)]
        found += partly(op, [0], [joined])
    return found


@registry.register(*names("SegmentSum SegmentMean SegmentProd SegmentMax SegmentMin"))
def sorted_segments(op: OpView) -> list[Signature]:
    """Dims of the rows only: how many rows a segment has is found by looking at all ids."""
    found = [place(op, {0: S(dim)}, S(dim)) for dim in range(1, op.inputs[0].rank)]
    return found + (partly(op, [0], [P]) if op.type in ("SegmentSum", "SegmentMean") else [])


@registry.register(
    *(f"SparseSegment{kind}{of}" for kind in ("Sum", "Mean", "SqrtN") for of in ("", "Grad", "WithNumSegments"))
)
def sparse_segments(op: OpView) -> list[Signature]:
    """Of rows that ids name, sorted by segment; the gradient brings rows of segments back to the ids' rows."""
    found = [place(op, {0: S(dim)}, S(dim)) for dim in range(1, op.inputs[0].rank)]
    return found + partly(op, [0], [P])
