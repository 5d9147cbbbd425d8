"""Scans along a dim: cumulative sums, products, and sums of exponentials.

Where the scanned dim is split, each block of it is scanned by itself and gets what comes before it, for which only one
number per block is gathered:

    [.. N/u u ..] S(d) ── scan along u ─────────────────────────────────────── + ── [.. N ..] S(d:u)
                  └── sum along u ── [.. N/u 1 ..] ═▶ B ── exclusive scan ─────┘
"""

from __future__ import annotations

import math
from typing import Any

from whaleish.rules.blocks import Blocks, block_length
from whaleish.rules.forms import reduced_dims, width
from whaleish.rules.rule import Fragment, OpView, Signature, TensorSpec, registry
from whaleish.sbp import B, P, S

_SCANS = {"Cumsum": ("Sum", "AddV2"), "Cumprod": ("Prod", "Mul"), "CumulativeLogsumexp": ("", "")}
"""How a block is reduced, and how what comes before is brought in, where there are ops for that."""


def _blockwise(op: OpView) -> tuple[int, int] | None:
    """The scanned dim and the length of its blocks; None where it has none."""
    shape, dims = op.inputs[0].shape, reduced_dims(op, 1, op.inputs[0].rank)
    if not shape or not dims or 0 in shape:
        return None
    unit = block_length(shape[dims[0]])
    return None if unit is None else (dims[0], unit)


class _Scan(Blocks):
    """The scan of blocks, and of what they come to, in a fragment."""

    def __init__(self, op: OpView, dim: int, unit: int) -> None:
        super().__init__(op, dim, unit)
        self.type, self.unit = op.type, unit
        self.exclusive, self.reverse = bool(op.attrs.get("exclusive")), bool(op.attrs.get("reverse"))
        self.each = (*self.shape[: dim + 1], 1, *self.shape[dim + 2 :])

    def split(self, type: str, inputs: list[int], shape: tuple[int, ...], **attrs: Any) -> int:
        """An op whose output stays split along the blocks."""
        value = self.emit(type, inputs, shape, **attrs)
        self.fragment.held[value] = S(self.dim)
        return value

    def along_blocks(self, exclusive: bool) -> int:
        attrs = {"exclusive": exclusive, "reverse": self.reverse, "Tidx": "int32"}
        return self.split(self.type, [self.input, self.scalar(self.dim + 1)], self.shape, **attrs)

    def totals(self, inner: int) -> int:
        """What each block comes to: for sums of exponentials, the end of its scan."""
        reduce, _ = _SCANS[self.type]
        if reduce:
            return self.split(reduce, [self.input, self.along], self.each, keep_dims=True, Tidx="int32")
        inclusive = self.along_blocks(False) if self.exclusive else inner
        end = [0] * len(self.shape)
        end[self.dim + 1] = 0 if self.reverse else self.unit - 1
        return self.split("Slice", [inclusive, self.const(*end), self.const(*self.each)], self.each, Index="int32")

    def join(self, inner: int, before: int) -> int:
        _, combine = _SCANS[self.type]
        if combine:
            return self.split(combine, [inner, before], self.shape)
        # log(exp a + exp b) = max + log(1 + exp(min - max)); of two infinities the difference counts as 0.
        high, low = (self.split(type, [inner, before], self.shape) for type in ("Maximum", "Minimum"))
        less = self.split("Sub", [low, high], self.shape)
        spec = TensorSpec(self.shape, "bool")
        equal = int(self.fragment.emit("Equal", [low, high], [spec], T=self.dtype))
        self.fragment.held[equal] = S(self.dim)
        less = self.split("SelectV2", [equal, self.fragment.const(0, self.dtype), less], self.shape)
        more = self.split("Log1p", [self.split("Exp", [less], self.shape)], self.shape)
        return self.split("AddV2", [high, more], self.shape)


def _scan_in_blocks(op: OpView) -> Fragment:
    found = _blockwise(op)
    if found is None:
        raise ValueError(f"the scanned dim of {op.inputs} does not fall into blocks")
    scan = _Scan(op, *found)
    inner = scan.along_blocks(scan.exclusive)
    attrs = {"exclusive": True, "reverse": scan.reverse, "Tidx": "int32"}
    before = scan.emit(op.type, [scan.totals(inner), scan.scalar(scan.dim)], scan.each, **attrs)
    scan.fragment.held[before] = B
    result = scan.reshape(scan.join(inner, before), op.outputs[0].shape or ())
    scan.fragment.held[result] = S(scan.dim)
    scan.fragment.outputs = (result,)
    return scan.fragment


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
