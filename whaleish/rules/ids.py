"""Ids of rows of a table of which a part holds a slice."""

from __future__ import annotations

from collections.abc import Sequence

from whaleish.rules.rule import Lowering, Ref


def local_ids(low: Lowering, ids: Ref, dtype: str, start: int, count: int, total: int, foreign: int) -> tuple[Ref, Ref]:
    """Ids counted from the start of this part's rows, and which of them are this part's.

    An id of another part's row becomes `foreign`. One that is no row at all stays out of range, so that the kernel
    treats it as it does on one device.

    Args:
      ids: global row numbers, of type `dtype`.
      start, count: this part's rows; total: all rows.
    """
    local, own, others = _sort_out(low, ids, dtype, start, count, total)
    others = low.emit("LogicalAnd", [others, low.emit("LogicalNot", [own])])
    return low.emit("SelectV2", [others, low.const(foreign, dtype), local], T=dtype), own


def local_places(
    low: Lowering, places: Ref, dtype: str, starts: Sequence[int], counts: Sequence[int], totals: Sequence[int]
) -> tuple[Ref, Ref]:
    """As `local_ids` for places in the first dims of a tensor: `places` is [..., K]; what is whose is [..., 1].

    Another part's place becomes the origin.
    """
    local, own, others = _sort_out(low, places, dtype, list(starts), list(counts), list(totals))
    last = low.const([-1], "int32")
    own, valid = (low.emit("All", [flag, last], keep_dims=True, Tidx="int32") for flag in (own, others))
    others = low.emit("LogicalAnd", [valid, low.emit("LogicalNot", [own])])
    return low.emit("SelectV2", [others, low.const(0, dtype), local], T=dtype), own


def _sort_out(
    low: Lowering,
    ids: Ref,
    dtype: str,
    start: int | list[int],
    count: int | list[int],
    total: int | list[int],
) -> tuple[Ref, Ref, Ref]:
    """Ids from `start` on, which are in this part, and which are in any."""

    def within(value: Ref, limit: int | list[int]) -> Ref:
        above = low.emit("GreaterEqual", [value, low.const(0, dtype)], T=dtype)
        return low.emit("LogicalAnd", [above, low.emit("Less", [value, low.const(limit, dtype)], T=dtype)])

    local = low.emit("Sub", [ids, low.const(start, dtype)], T=dtype)
    return local, within(local, count), within(ids, total)


def keep_own(low: Lowering, values: Ref, dtype: str, own: Ref, shape: Sequence[int], other: float = 0) -> Ref:
    """`values` where `own`, given the `shape` that broadcasts against them, is true; `other` elsewhere, even of inf."""
    own = low.emit("Reshape", [own, low.const(list(shape), "int32")], T="bool", Tshape="int32")
    return low.emit("SelectV2", [own, values, low.const(other, dtype)], T=dtype)
