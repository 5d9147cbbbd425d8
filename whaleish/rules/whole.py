"""Ops that no rule could split, and why: that they run whole is no omission, and a report need not list them."""

from __future__ import annotations

from whaleish.rules.forms import names

WHOLE: dict[str, tuple[str, ...]] = {
    "their output is the logical shape, which is folded to a constant": names(
        """Shape ShapeN Size Rank VariableShape BroadcastGradientArgs BroadcastArgs ConcatOffset InvertPermutation
        TensorListElementShape"""
    ),
    "nothing tells one part what the others have drawn": names(
        """RandomUniform RandomUniformInt RandomStandardNormal TruncatedNormal RandomGamma RandomPoissonV2
        RandomShuffle Multinomial ParameterizedTruncatedNormal StatefulUniform StatefulStandardNormalV2
        StatefulTruncatedNormal StatefulUniformInt StatefulRandomBinomial RngReadAndSkip RngSkip
        StatelessMultinomial StatelessParameterizedTruncatedNormal StatelessRandomGammaV2 StatelessRandomGammaV3
        StatelessRandomPoisson StatelessRandomBinomial StatelessShuffle"""
    ),
    "they make the keys and counters that every part draws from": names(
        "StatelessRandomGetKeyCounter StatelessRandomGetKeyCounterAlg StatelessRandomGetAlg"
    ),
    "how much comes out depends on the values": names("Where Unique UniqueV2 UniqueWithCounts UniqueWithCountsV2"),
    "their bins are counted over the whole": names("Bincount DenseBincount HistogramFixedWidth"),
    "their effect is on the host, once": names("NoOp Print PrintV2 Assert StringFormat WriteSummary"),
    "where an element lies depends on how many there are": names("LinSpace"),
}
"""Reason -> op types."""

REASONS: dict[str, str] = {type: reason for reason, types in WHOLE.items() for type in types}
"""Op type -> why it runs whole."""
