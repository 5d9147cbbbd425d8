"""Ops that no rule could split, and why: that they run whole is no omission, and a report need not list them."""

from __future__ import annotations

from whaleish.rules.forms import names

WHOLE: dict[str, tuple[str, ...]] = {
    "their output is the logical shape, which is folded to a constant": names(
        """Shape ShapeN Size Rank VariableShape BroadcastGradientArgs BroadcastArgs ConcatOffset InvertPermutation
        TensorListElementShape"""
    ),
    "nothing tells one part what the others have drawn": names(
        """RandomUniform RandomUniformInt RandomStandardNormal TruncatedNormal RandomGamma RandomPoisson RandomPoissonV2
        RandomCrop RandomShuffle Multinomial NonDeterministicInts ParameterizedTruncatedNormal StatefulUniform
        StatefulUniformFullInt StatefulUniformInt StatefulStandardNormal StatefulStandardNormalV2
        StatefulTruncatedNormal StatefulRandomBinomial RngReadAndSkip RngSkip StatelessMultinomial
        StatelessParameterizedTruncatedNormal StatelessRandomGammaV2 StatelessRandomGammaV3 StatelessRandomPoisson
        StatelessRandomBinomial StatelessShuffle SampleDistortedBoundingBox SampleDistortedBoundingBoxV2
        StatelessSampleDistortedBoundingBox FractionalAvgPool FractionalMaxPool AllCandidateSampler
        FixedUnigramCandidateSampler LearnedUnigramCandidateSampler LogUniformCandidateSampler
        ThreadUnsafeUnigramCandidateSampler UniformCandidateSampler KmeansPlusPlusInitialization"""
    ),
    "they make the keys and counters that every part draws from": names(
        "StatelessRandomGetKeyCounter StatelessRandomGetKeyCounterAlg StatelessRandomGetAlg"
    ),
    "how much comes out depends on the values": names(
        """Where Unique UniqueV2 UniqueWithCounts UniqueWithCountsV2 ListDiff DynamicPartition ComputeAccidentalHits
        NonMaxSuppression NonMaxSuppressionV2 NonMaxSuppressionV3 NonMaxSuppressionV4 NonMaxSuppressionV5
        NonMaxSuppressionWithOverlaps SparseSegmentSumGradV2 SparseSegmentMeanGradV2 SparseSegmentSqrtNGradV2
        SparseAdd SparseConcat SparseCross SparseCrossHashed SparseCrossV2 SparseFillEmptyRows SparseReduceMaxSparse
        SparseReduceSumSparse SparseSlice SparseSparseMaximum SparseSparseMinimum SparseSplit
        SparseCountSparseOutput DenseCountSparseOutput RaggedCountSparseOutput DenseToDenseSetOperation
        DenseToSparseSetOperation SparseToSparseSetOperation RaggedCross RaggedFillEmptyRows RaggedGather RaggedRange
        RaggedTensorToSparse StringNGrams StringSplit StringSplitV2 UnicodeDecode UnicodeDecodeWithOffsets
        CTCGreedyDecoder CTCBeamSearchDecoder"""
    ),
    "which elements belong together is known only from all places": names(
        """CTCLoss CTCLossV2 EditDistance RaggedBincount RaggedTensorToTensor SetSize SparseBincount
        SparseFillEmptyRowsGrad SparseReduceMax SparseReorder SparseSoftmax UnicodeEncode"""
    ),
    "their effect is on the host, once": names(
        """NoOp Print PrintV2 Assert StringFormat WriteSummary WriteScalarSummary WriteHistogramSummary
        WriteImageSummary WriteAudioSummary WriteGraphSummary WriteRawProtoSummary FlushSummaryWriter
        CloseSummaryWriter SummaryWriter Timestamp WriteFile ReadFile Save SaveV2 SaveSlices Restore RestoreV2
        RestoreSlice MatchingFiles"""
    ),
    "they call the program's own Python": names("PyFunc PyFuncStateless EagerPyFunc"),
    "a table, a queue or an iterator has no parts": names(
        """HashTableV2 MutableHashTableV2 MutableDenseHashTableV2 AnonymousHashTable AnonymousMutableHashTable
        LookupTableFindV2 LookupTableInsertV2 LookupTableImportV2 LookupTableExportV2 LookupTableRemoveV2
        LookupTableSizeV2 InitializeTableV2 InitializeTableFromTextFileV2 IteratorGetNext IteratorGetNextSync
        IteratorGetNextAsOptional OptionalHasValue"""
    ),
    "where an element lies depends on how many there are": names("LinSpace DataFormatVecPermute"),
}
"""Reason -> op types."""

REASONS: dict[str, str] = {type: reason for reason, types in WHOLE.items() for type in types}
"""Op type -> why it runs whole."""

DRAWS = frozenset(
    type
    for reason in ("nothing tells one part what the others have drawn", "they call the program's own Python")
    for type in WHOLE[reason]
    if not type.startswith("Stateless")
)
"""Ops that may give something else when they run again."""
