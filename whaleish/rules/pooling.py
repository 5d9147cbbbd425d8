"""Pooling and fused normalisation of batches of images and volumes, and their gradients."""

from __future__ import annotations

from whaleish.rules.forms import at, channel_dim, constant_ints, same, unless_empty
from whaleish.rules.rule import Lowering, OpView, Ref, Signature, TensorSpec, registry
from whaleish.sbp import PMAX, B, P, S


def free_dims(op: OpView, images: TensorSpec, window: int | None = None) -> list[int]:
    """Dims along which no window reaches from one element to another.

    `window` is the index of the operand that gives the windows' sizes, followed by their strides; without it they are
    attributes. Batch and channels are free unless a window spans them, and so is a spatial dim with windows of 1.
    """
    if window is None:
        sizes, strides = tuple(op.attrs["ksize"]), tuple(op.attrs["strides"])
    else:
        sizes, strides = (constant_ints(op, index) or () for index in (window, window + 1))
    padding = op.attrs.get("explicit_paddings") or (0,) * 2 * images.rank
    return [
        dim
        for dim, (size, stride) in enumerate(zip(sizes, strides, strict=True))
        if size == stride == 1 and not any(padding[2 * dim : 2 * dim + 2])
    ]


@registry.register("AvgPool", "AvgPool3D", lower=unless_empty(same))
def average(op: OpView) -> list[Signature]:
    return [Signature((S(dim),), (S(dim),)) for dim in free_dims(op, op.inputs[0])] + [Signature((P,), (P,))]


@registry.register("MaxPool", "MaxPool3D", "MaxPoolV2", lower=unless_empty(same))
def maximum(op: OpView) -> list[Signature]:
    count = len(op.inputs)
    dims = free_dims(op, op.inputs[0], 1 if count > 1 else None)
    found = [Signature(at(count, 0, sbp=S(dim)), (S(dim),)) for dim in dims]
    return [*found, Signature(at(count, 0, sbp=PMAX), (PMAX,))]


@registry.register("MaxPoolWithArgmax", lower=unless_empty(same))
def maximum_and_place(op: OpView) -> list[Signature]:
    """The places are counted within an image, or within the batch."""
    free = 0 in free_dims(op, op.inputs[0]) and not op.attrs.get("include_batch_in_index")
    return [Signature((S(0),), (S(0), S(0)))] if free else []


def lower_average_gradient(part: Lowering) -> list[Ref]:
    return part.same({0: part.const(part.shape_out(0), "int32")})


@registry.register("AvgPoolGrad", "AvgPool3DGrad", lower=unless_empty(lower_average_gradient))
def average_gradient(op: OpView) -> list[Signature]:
    """Of the shape of the original images and the gradient."""
    found = [Signature((B, S(dim)), (S(dim),)) for dim in free_dims(op, op.outputs[0])]
    return [*found, Signature((B, P), (P,))]


@registry.register(
    "MaxPoolGrad",
    "MaxPoolGradV2",
    "MaxPool3DGrad",
    "MaxPoolGradGrad",
    "MaxPoolGradGradV2",
    "MaxPool3DGradGrad",
    lower=unless_empty(same),
)
def maximum_gradient(op: OpView) -> list[Signature]:
    """Of the images, what was made of them, and a gradient, in which it is linear."""
    count = len(op.inputs)
    dims = free_dims(op, op.inputs[0], 3 if count > 3 else None)
    found = [Signature(at(count, 0, 1, 2, sbp=S(dim)), (S(dim),)) for dim in dims]
    return [*found, Signature(at(count, 2, sbp=P), (P,))]


@registry.register("MaxPoolGradWithArgmax", lower=unless_empty(same))
def placed_gradient(op: OpView) -> list[Signature]:
    """Of images, a gradient and the places that were found, which are counted within an image or within the batch."""
    free = 0 in free_dims(op, op.inputs[0]) and not op.attrs.get("include_batch_in_index")
    found = [Signature((S(0), S(0), S(0)), (S(0),))] if free else []
    return [*found, Signature((B, P, B), (P,))]


@registry.register("Dilation2D", lower=unless_empty(same))
def dilation(op: OpView) -> list[Signature]:
    """The maximum over a window of images plus filter [h w C]."""
    return [
        Signature((S(0), B), (S(0),)),
        Signature((S(3), S(2)), (S(3),)),
        Signature((PMAX, B), (PMAX,)),
        Signature((B, PMAX), (PMAX,)),
    ]


@registry.register("Dilation2DBackpropInput", "Dilation2DBackpropFilter", lower=unless_empty(same))
def dilation_gradient(op: OpView) -> list[Signature]:
    """Of images, filter and a gradient, each element of which goes to the place where the maximum was."""
    of_images = op.type.endswith("Input")
    return [
        Signature((S(0), B, S(0)), (S(0) if of_images else P,)),
        Signature((S(3), S(2), S(3)), (S(3) if of_images else S(2),)),
        Signature((B, B, P), (P,)),
    ]


@registry.register("LRN", "LRNGrad")
def local_response(op: OpView) -> list[Signature]:
    """Images (for the gradient: gradient, images, what was made of them) are divided by a mean over near channels."""
    count = len(op.inputs)
    found = [Signature((S(dim),) * count, (S(dim),)) for dim in range(3)]
    return found + ([Signature(at(count, 0, sbp=P), (P,))] if op.type == "LRNGrad" else [])


@registry.register("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3", split_empty=False)
def batch_norm(op: OpView) -> list[Signature]:
    """Images, then vectors over the channels. The batch may be split where its statistics are given, not taken."""
    channel = channel_dim(op, op.inputs[0].rank)
    spare = (B,) * (len(op.outputs) - 5)  # What V3 keeps for its gradient on GPUs: empty on CPUs.
    # Statistics that are not given are vectors without elements.
    given = (S(0) if spec.shape != (0,) else B for spec in op.inputs[1:])
    found = [Signature((S(channel), *given), (S(channel), *[S(0)] * 4, *spare))]
    if not op.attrs.get("is_training", True):
        found.append(Signature((S(0), *[B] * 4), (S(0), *[B] * 4, *spare)))
    return found


@registry.register("FusedBatchNormGrad", "FusedBatchNormGradV2", "FusedBatchNormGradV3", split_empty=False)
def batch_norm_gradient(op: OpView) -> list[Signature]:
    """Gradient and images, then the scale, the kept statistics and, in V3, the spare.

    The outputs are the gradients of the images, the scale and the offset, and two placeholders without elements.
    """
    channel = channel_dim(op, op.inputs[0].rank)
    spare = (B,) * (len(op.inputs) - 5)
    found = [Signature((S(channel), S(channel), *[S(0)] * 3, *spare), (S(channel), S(0), S(0), B, B))]
    if not op.attrs.get("is_training", True):
        found.append(Signature((S(0), S(0), *[B] * 3, *spare), (S(0), P, P, B, B)))
    return [*found, Signature((P, *[B] * 4, *spare), (P, P, P, B, B))]
