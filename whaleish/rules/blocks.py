"""A split dim in blocks of equal length: each is done by the part that has it, and only their results are joined.

    [.. N ..] S(d:u)  ──Reshape──▶  [.. N/u u ..] S(d)  ──along u──▶  a result per block, which is small

As the cuts fall between blocks, the first reshape moves nothing, whatever the number of parts.
"""

from __future__ import annotations

import math
from typing import Any

from whaleish.rules.rule import Fragment, OpView, TensorSpec
from whaleish.sbp import S


def block_length(length: int) -> int | None:
    """The largest divisor that is no more than the root, so that blocks are many and long; None if that is 1."""
    return next((n for n in range(math.isqrt(length), 1, -1) if length % n == 0), None)


class Blocks:
    """The first input of an op, with one dim in blocks, in a fragment.

    Attributes:
      dim: the dim that counts the blocks; the one behind it goes along a block.
      input: the value that has the blocks.
    """

    def __init__(self, op: OpView, dim: int, unit: int) -> None:
        self.fragment, self.dim = Fragment(op), dim
        shape, self.dtype = op.inputs[0].shape or (), op.inputs[0].dtype
        self.shape = (*shape[:dim], shape[dim] // unit, unit, *shape[dim + 1 :])
        self.along = self.const(dim + 1)
        self.input = self.reshape(0, self.shape)
        self.fragment.held[self.input] = S(dim)

    def const(self, *values: int) -> int:
        return self.fragment.const(list(values), "int32")

    def scalar(self, value: int) -> int:
        return self.fragment.const(value, "int32")

    def emit(self, type: str, inputs: list[int], shape: tuple[int, ...], **attrs: Any) -> int:
        """Adds an op whose output has the dtype of the input."""
        return int(self.fragment.emit(type, inputs, [TensorSpec(shape, self.dtype)], T=self.dtype, **attrs))

    def reshape(self, value: int, shape: tuple[int, ...]) -> int:
        return self.emit("Reshape", [value, self.const(*shape)], shape, Tshape="int32")
