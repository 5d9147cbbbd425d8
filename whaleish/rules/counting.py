"""How many there are: histograms, and places in sorted rows."""

from __future__ import annotations

from whaleish.rules.movement import place
from whaleish.rules.rule import OpView, Signature, registry
from whaleish.sbp import PMAX, B, P, S, Sbp


@registry.register("Bincount", "DenseBincount")
def bins(op: OpView) -> list[Signature]:
    """Values, how many bins, and weights of the values or none.

    Bins are sums of what the parts counted; only a row of a matrix that `DenseBincount` counts by itself has its own.
    Where ones are noted in place of counts, the whole is the parts' maximum.
    """
    values, weights = op.inputs[0], op.inputs[2]
    joined = PMAX if op.attrs.get("binary_output") else P
    found = []
    for dim in range(values.rank):
        by_rows = op.type == "DenseBincount" and values.rank == 2 and dim == 0
        own: Sbp = S(dim) if weights.shape == values.shape else B
        found.append(place(op, {0: S(dim), 2: own}, S(0) if by_rows else joined))
    return found


@registry.register("HistogramFixedWidth")
def histogram(op: OpView) -> list[Signature]:
    """Values, the range of the histogram, how many bins."""
    return [place(op, {0: S(dim)}, P) for dim in range(op.inputs[0].rank)]


@registry.register("LowerBound", "UpperBound")
def places_in_sorted(op: OpView) -> list[Signature]:
    """Sorted rows [N, M], values [N, K] -> how many of its row are below each value: a sum over parts of the row."""
    return [place(op, {0: S(0), 1: S(0)}, S(0)), place(op, {1: S(1)}, S(1)), place(op, {0: S(1)}, P)]
