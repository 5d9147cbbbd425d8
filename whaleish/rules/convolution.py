"""Convolutions, depthwise ones, and their gradients, for images and volumes.

    Conv            input [N .. Ci], filter [.. Ci/g Co]              -> [N .. Co]
    Depthwise       input [N .. C],  filter [.. C M]                  -> [N .. C*M]
    BackpropInput   sizes, filter, gradient of the output             -> gradient of the input
    BackpropFilter  input, sizes, gradient of the output              -> gradient of the filter

In each of the three places (input, filter, output) a dim of the convolution has one split, and what the op sums over is
partial: N and, in a plain convolution, Co and Ci each by itself; with g > 1 groups only whole groups, Ci and Co
together; depthwise C, which is M times as long in the output. Spatial dims would need their neighbours' rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from whaleish.rules.forms import Lower, channel_dim, unless_empty
from whaleish.rules.rule import Lowering, OpView, Ref, Signature, registry
from whaleish.sbp import B, P, S, Sbp


class Split(NamedTuple):
    """One dim of a convolution: how it splits the input, the filter and the output; B where it is not a dim of that."""

    input: Sbp
    filter: Sbp
    output: Sbp


def splits(op: OpView, input: int, filter: int, output: int) -> Iterator[Split]:
    """The dims that can be split. The arguments index the three tensors among the op's inputs, then its outputs."""
    specs = (*op.inputs, *op.outputs)
    images, kernel, made = specs[input].shape, specs[filter].shape, specs[output].shape
    if images is None or kernel is None or made is None:
        return
    rank = len(images)
    channel = channel_dim(op, rank)
    yield Split(S(0), B, S(0))
    if op.type.startswith("Depthwise"):
        yield Split(S(channel), S(rank - 2), S(channel, kernel[-1]))
    elif images[channel] == kernel[-2]:
        yield Split(B, S(rank - 1), S(channel))
        yield Split(S(channel), S(rank - 2), B)
    else:
        groups = images[channel] // kernel[-2]
        per_group = kernel[-1] // groups
        yield Split(S(channel, kernel[-2]), S(rank - 1, per_group), S(channel, per_group))


def partial_if_summed(sbp: Sbp) -> Sbp:
    """A dim that the result does not have was summed over."""
    return P if sbp == B else sbp


def _groups(part: Lowering, images: tuple[int, ...], kernel: tuple[int, ...]) -> int:
    """Into how many groups the channels that a part holds of a plain convolution fall."""
    channel = channel_dim(part.op, len(images))
    return 1 if part.op.type.startswith("Depthwise") or not kernel[-2] else images[channel] // kernel[-2]


def _by_group(part: Lowering, groups: int, given: Mapping[int, int], made: int, fixed: Mapping[int, Ref]) -> list[Ref]:
    """Carries a convolution or gradient out group by group.

    CPUs have no kernels for grouped convolutions of volumes nor for the gradients of any; Keras leaves those to XLA.

    Args:
      given: input -> its dim along which groups lie. made: the same of the output. fixed: inputs to replace.
    """
    dtype = part.op.outputs[0].dtype
    pieces = []
    for group in range(groups):
        inputs = dict(fixed)
        for index, dim in given.items():
            size = list(part.shape_in(index))
            begin = [0] * len(size)
            size[dim] //= groups
            begin[dim] = group * size[dim]
            operands = [part.input(index), part.const(begin, "int32"), part.const(size, "int32")]
            inputs[index] = part.emit("Slice", operands, T=dtype, Index="int32")
        pieces += part.same(inputs)
    return [part.emit("ConcatV2", [*pieces, part.const(made, "int32")], N=groups, T=dtype, Tidx="int32")]


def _convolve(part: Lowering) -> list[Ref]:
    images, kernel = part.shape_in(0), part.shape_in(1)
    groups, channel = _groups(part, images, kernel), channel_dim(part.op, len(images))
    if groups == 1 or part.op.type != "Conv3D":
        return part.same()
    return _by_group(part, groups, {0: channel, 1: len(images) - 1}, channel, {})


@registry.register("Conv2D", "Conv3D", "DepthwiseConv2dNative", lower=unless_empty(_convolve), always=True)
def convolution(op: OpView) -> list[Signature]:
    found = [Signature((s.input, s.filter), (partial_if_summed(s.output),)) for s in splits(op, 0, 1, 2)]
    return [*found, Signature((P, B), (P,)), Signature((B, P), (P,))]


def lower_with_sizes(index: int) -> Lower:
    """The gradient itself, told the local shape of what it makes in place of the logical one, input `index`."""

    def lower(part: Lowering) -> list[Ref]:
        made, rank = part.shape_out(0), len(part.shape_out(0))
        channel, dtype = channel_dim(part.op, rank), part.op.inputs[index].dtype
        images, kernel = (made, part.shape_in(1)) if index == 0 else (part.shape_in(0), made)
        groups = _groups(part, images, kernel)
        if groups == 1:
            return part.same({index: part.const(made, dtype)})
        along, other = (channel, rank - 1) if index == 0 else (rank - 1, channel)
        shape = [length // groups if dim == along else length for dim, length in enumerate(made)]
        return _by_group(part, groups, {1 - index: other, 2: channel}, along, {index: part.const(shape, dtype)})

    return unless_empty(lower)


@registry.register(
    "Conv2DBackpropInput",
    "Conv3DBackpropInputV2",
    "DepthwiseConv2dNativeBackpropInput",
    lower=lower_with_sizes(0),
    always=True,
)
def input_gradient(op: OpView) -> list[Signature]:
    found = [Signature((B, s.filter, s.output), (partial_if_summed(s.input),)) for s in splits(op, 3, 1, 2)]
    return [*found, Signature((B, P, B), (P,)), Signature((B, B, P), (P,))]


@registry.register(
    "Conv2DBackpropFilter",
    "Conv3DBackpropFilterV2",
    "DepthwiseConv2dNativeBackpropFilter",
    lower=lower_with_sizes(1),
    always=True,
)
def filter_gradient(op: OpView) -> list[Signature]:
    found = [Signature((s.input, B, s.output), (partial_if_summed(s.filter),)) for s in splits(op, 0, 3, 2)]
    return [*found, Signature((P, B, B), (P,)), Signature((B, B, P), (P,))]
