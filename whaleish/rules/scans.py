"""Scans along a dim: cumulative sums, products, and sums of exponentials.

Where the scanned dim is split, each block of it is scanned by itself and gets what comes before it, for which only one
number per block is gathered:

    [.. N/u u ..] S(d) ── scan along u ─────────────────────────────────────── + ── [.. N ..] S(d:u)
                  └── sum along u ── [.. N/u 1 ..] ═▶ B ── exclusive scan ─────┘
"""

from __future__ import annotations

import math

from whaleish.rules.blocks import Blocks, block_length
from whaleish.rules.forms import reduced_dims, width
from whaleish.rules.rule import Fragment, OpView, Signature, registry
from whaleish.sbp import B, P, S

_WHOLE_BLOCK = {"Cumsum": ("Sum", "AddV2"), "Cumprod": ("Prod", "Mul")}
"""How a block is reduced, and how what comes before is brought in."""


def _blockwise(op: OpView) -> tuple[int, int] | None:
    """The scanned dim and the length of its blocks; None where it has none."""
    shape, dims = op.inputs[0].shape, reduced_dims(op, 1, op.inputs[0].rank)
    if op.type not in _WHOLE_BLOCK or not shape or not dims or 0 in shape:
        return None
    unit = block_length(shape[dims[0]])
    return None if unit is None else (dims[0], unit)


def _scan_in_blocks(op: OpView) -> Fragment:
    found = _blockwise(op)
    if found is None:
        raise ValueError(f"the scanned dim of {op.inputs} does not fall into blocks")
    dim, _ = found
    blocks = Blocks(op, *found)
    reduce, combine = _WHOLE_BLOCK[op.type]
    reverse = bool(op.attrs.get("reverse"))
    own = {"exclusive": bool(op.attrs.get("exclusive")), "reverse": reverse, "Tidx": "int32"}
    inner = blocks.emit(op.type, [blocks.input, blocks.scalar(dim + 1)], blocks.shape, **own)
    each = (*blocks.shape[: dim + 1], 1, *blocks.shape[dim + 2 :])
    totals = blocks.emit(reduce, [blocks.input, blocks.along], each, keep_dims=True, Tidx="int32")
    before = blocks.emit(op.type, [totals, blocks.scalar(dim)], each, **own | {"exclusive": True})
    joined = blocks.emit(combine, [inner, before], blocks.shape)
    result = blocks.reshape(joined, op.outputs[0].shape or ())
    blocks.fragment.held |= {inner: S(dim), totals: S(dim), before: B, joined: S(dim), result: S(dim)}
    blocks.fragment.outputs = (result,)
    return blocks.fragment


@registry.register("Cumsum", "Cumprod", "CumulativeLogsumexp", expand=_scan_in_blocks)
def scan(op: OpView) -> list[Signature]:
    """Along one dim; the others are independent of each other."""
    rank = op.inputs[0].rank
    dims = reduced_dims(op, 1, rank)
    found = [] if dims is None else [Signature((S(dim), B), (S(dim),)) for dim in range(rank) if dim not in dims]
    if blocks := _blockwise(op):
        dim, unit = blocks
        # A gather sends half as much as the all-reduce by which inner bytes are charged.
        size = math.prod(op.inputs[0].shape or ()) // unit * width(op.inputs[0]) // 2
        found.append(Signature((S(dim, unit), B), (S(dim, unit),), expands=True, inner_bytes=size))
    return found + ([Signature((P, B), (P,))] if op.type == "Cumsum" else [])
