"""Ops on strings: each element by itself, or joined along a dim."""

from __future__ import annotations

from whaleish.rules.forms import all_split, names
from whaleish.rules.movement import carried, empty_as_zeros, place
from whaleish.rules.reduction import reductions
from whaleish.rules.rule import OpView, Signature, registry
from whaleish.sbp import S


@registry.register(
    *names("""
        AsString DecodeBase64 DecodeCompressed EncodeBase64 RegexFullMatch RegexReplace StaticRegexFullMatch
        StaticRegexReplace StringJoin StringLength StringLower StringStrip StringToHashBucket StringToHashBucketFast
        StringToHashBucketStrong StringToNumber StringUpper Substr UnicodeScript UnicodeTranscode
    """)
)
def each(op: OpView) -> list[Signature]:
    """Patterns, and what is joined or cut alike everywhere, are scalars."""
    return all_split(op)


@registry.register("DecodeRaw", "DecodePaddedRaw", lower=empty_as_zeros())
def numbers_of_bytes(op: OpView) -> list[Signature]:
    """The numbers in a string are a last dim."""
    return carried(op, ((dim, dim) for dim in range(op.inputs[0].rank)))


@registry.register("Fingerprint", lower=empty_as_zeros())
def fingerprint(op: OpView) -> list[Signature]:
    """[N, ...] -> 8 bytes for each of the N."""
    return [place(op, {0: S(0)}, S(0))]


@registry.register("DecodeCSV")
def fields(op: OpView) -> list[Signature]:
    """Records and a default for each column -> the columns, each of the shape of the records."""
    return carried(op, ((dim, dim) for dim in range(op.inputs[0].rank)))


@registry.register("ReduceJoin")
def join(op: OpView) -> list[Signature]:
    """Along the dims that are kept; strings of parts have no sum."""
    return reductions(op)


@registry.register("UnsortedSegmentJoin")
def join_segments(op: OpView) -> list[Signature]:
    """data = ids + rest -> out = [segments] + rest"""
    data, ids = op.inputs[0], op.inputs[1]
    return [place(op, {0: S(dim)}, S(dim - ids.rank + 1)) for dim in range(ids.rank, data.rank)]
