"""Fused normalisation of batches of images by the statistics of each channel, and its gradient.

    images [N .. C], scale [C], offset [C], statistics [C] -> images, statistics, statistics kept for the gradient

Channels do not look at each other, nor do samples where the statistics are given. Where they are taken of a batch that
is split, the op is written out, and two numbers per channel travel:

    images S(0) ── Mean ── P ═▶ B [1 .. C] ──┐            ┌── Rsqrt ──┐
           └───────────── Sub ◀──────────────┘            │           │
                           ├── Square ── Mean ── P ═▶ B ──┘           │
                           └───────────────────────────────── Mul ◀───┘ ── images S(0)

What is kept for the gradient is a mean and a variance, as on CPUs; cuDNN keeps one over the root of the variance.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from whaleish.rules.forms import FLOATS, channel_dim
from whaleish.rules.rule import Fragment, OpView, Signature, TensorSpec, registry
from whaleish.sbp import B, P, S


class _Channels:
    """Ops on images and on rows [1 .. C] of a number per channel, in a fragment, in the dtype of the vectors."""

    def __init__(self, op: OpView, images: int, vector: int) -> None:
        self.fragment = Fragment(op)
        self.shape, self.given = op.inputs[images].shape or (), op.inputs[images].dtype
        self.dtype, self.vector = op.inputs[vector].dtype, op.inputs[vector].shape or ()
        channel = channel_dim(op, len(self.shape))
        self.row = tuple(n if dim == channel else 1 for dim, n in enumerate(self.shape))
        self.count = math.prod(self.shape) // self.shape[channel]
        self.others = self.fragment.const([dim for dim in range(len(self.shape)) if dim != channel], "int32")

    def _emit(self, type: str, inputs: list[int], shape: tuple[int, ...], dtype: str, **attrs: Any) -> int:
        """Adds an op. Images stay split, numbers per channel are whole."""
        value = int(self.fragment.emit(type, inputs, [TensorSpec(shape, dtype)], **attrs))
        self.fragment.held[value] = S(0) if shape == self.shape else B
        return value

    def cast(self, value: int, source: str, target: str) -> int:
        if source == target:
            return value
        return self._emit("Cast", [value], self.shape, target, SrcT=source, DstT=target, Truncate=False)

    def map(self, type: str, *values: int) -> int:
        shapes = [self.fragment.specs[value].shape for value in values]
        shape = self.shape if self.shape in shapes else self.row if self.row in shapes else self.vector
        return self._emit(type, list(values), shape, self.dtype, T=self.dtype)

    def reduce(self, type: str, value: int) -> int:
        """A row, as a sum over the parts of the batch."""
        inputs, spec = [value, self.others], TensorSpec(self.row, self.dtype)
        return int(self.fragment.emit(type, inputs, [spec], keep_dims=True, T=self.dtype, Tidx="int32"))

    def reshape(self, value: int, shape: tuple[int, ...]) -> int:
        new = self.fragment.const(list(shape), "int32")
        return self._emit("Reshape", [value, new], shape, self.dtype, T=self.dtype, Tshape="int32")

    def number(self, value: float) -> int:
        return self.fragment.const(value, self.dtype)

    def inverse(self, variance: int) -> int:
        """One over the standard deviation."""
        epsilon = self.number(self.fragment.op.attrs["epsilon"])
        return self.map("Rsqrt", self.map("AddV2", variance, epsilon))

    def nothing(self, index: int) -> int:
        """What an output that only GPUs use holds: nothing, or zeros."""
        spec = self.fragment.op.outputs[index]
        return self.fragment.const(np.zeros((0,) if spec.shape is None else spec.shape), spec.dtype)


def _normalise(op: OpView) -> Fragment:
    channels = _Channels(op, 0, 1)
    images = channels.cast(0, channels.given, channels.dtype)
    mean = channels.reduce("Mean", images)
    centred = channels.map("Sub", images, mean)
    variance = channels.reduce("Mean", channels.map("Square", centred))
    scale, offset = (channels.reshape(value, channels.row) for value in (1, 2))
    factor = channels.map("Mul", scale, channels.inverse(variance))
    made = channels.map("AddV2", channels.map("Mul", centred, factor), offset)
    mean, variance = (channels.reshape(value, channels.vector) for value in (mean, variance))
    unbiased = channels.number(channels.count / max(1, channels.count - 1))
    estimate = channels.map("Mul", variance, unbiased)
    spare = [channels.nothing(index) for index in range(5, len(op.outputs))]
    images = channels.cast(made, channels.dtype, channels.given)
    channels.fragment.outputs = (images, mean, estimate, mean, variance, *spare)
    return channels.fragment


def _is_by_batch(op: OpView, images: int) -> bool:
    """Whether statistics are taken of this batch alone, and the batch has elements."""
    shape, factor = op.inputs[images].shape, op.attrs.get("exponential_avg_factor", 1.0)
    return bool(shape) and 0 not in (shape or ()) and factor == 1.0 and bool(op.attrs.get("is_training", True))


def _row_bytes(op: OpView, vector: int) -> int:
    return math.prod(op.inputs[vector].shape or ()) * FLOATS[op.inputs[vector].dtype]


def _are_known(op: OpView) -> bool:
    """All but the spare, whose size is known to the kernel alone."""
    return all(spec.shape is not None for spec in op.inputs[:5])


@registry.register(
    "FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3", expand=_normalise, split_empty=False, unknown=True
)
def batch_norm(op: OpView) -> list[Signature]:
    """Images, then vectors over the channels."""
    if not _are_known(op):
        return []
    channel = channel_dim(op, op.inputs[0].rank)
    spare = (B,) * (len(op.outputs) - 5)  # What V3 keeps for its gradient on GPUs: empty on CPUs.
    # Statistics that are not given are vectors without elements.
    given = (S(0) if spec.shape != (0,) else B for spec in op.inputs[1:])
    found = [Signature((S(channel), *given), (S(channel), *[S(0)] * 4, *spare))]
    by_batch = Signature((S(0), *[B] * 4), (S(0), *[B] * 4, *spare))
    if not op.attrs.get("is_training", True):
        found.append(by_batch)
    elif _is_by_batch(op, 0):
        found.append(by_batch._replace(expands=True, inner_bytes=2 * _row_bytes(op, 1)))
    return found


def _gradient(op: OpView) -> Fragment:
    channels = _Channels(op, 1, 2)
    given, images = (channels.cast(value, channels.given, channels.dtype) for value in (0, 1))
    scale, mean, variance = (channels.reshape(value, channels.row) for value in (2, 3, 4))
    inverse = channels.inverse(variance)
    normal = channels.map("Mul", channels.map("Sub", images, mean), inverse)
    of_scale = channels.reduce("Sum", channels.map("Mul", given, normal))
    of_offset = channels.reduce("Sum", given)
    shared = channels.map("AddV2", of_offset, channels.map("Mul", normal, of_scale))
    own = channels.map("Sub", given, channels.map("Mul", shared, channels.number(1 / channels.count)))
    made = channels.map("Mul", own, channels.map("Mul", scale, inverse))
    vectors = [channels.reshape(value, channels.vector) for value in (of_scale, of_offset)]
    nothing = [channels.nothing(index) for index in (3, 4)]
    channels.fragment.outputs = (channels.cast(made, channels.dtype, channels.given), *vectors, *nothing)
    return channels.fragment


@registry.register(
    "FusedBatchNormGrad",
    "FusedBatchNormGradV2",
    "FusedBatchNormGradV3",
    expand=_gradient,
    split_empty=False,
    unknown=True,
)
def batch_norm_gradient(op: OpView) -> list[Signature]:
    """Gradient and images, then the scale, the kept statistics and, in V3, the spare.

    The outputs are the gradients of the images, the scale and the offset, and two placeholders.
    """
    if not _are_known(op):
        return []
    channel = channel_dim(op, op.inputs[0].rank)
    spare = (B,) * (len(op.inputs) - 5)
    found = [Signature((S(channel), S(channel), *[S(0)] * 3, *spare), (S(channel), S(0), S(0), B, B))]
    if not op.attrs.get("is_training", True):
        found.append(Signature((S(0), S(0), *[B] * 3, *spare), (S(0), P, P, B, B)))
    elif _is_by_batch(op, 1):
        inputs = (S(0), S(0), *[B] * 3, *spare)
        found.append(Signature(inputs, (S(0), *[B] * 4), expands=True, inner_bytes=2 * _row_bytes(op, 2)))
    return [*found, Signature((P, *[B] * 4, *spare), (P, P, P, B, B))]
