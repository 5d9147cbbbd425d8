"""Pooling of batches of images and volumes, what is like it, and their gradients."""

from __future__ import annotations

from whaleish.rules.forms import at, constant_ints, same, unless_empty
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
    return part.same({0: part.const(part.shape_out(0), part.op.inputs[0].dtype)})


@registry.register("AvgPoolGrad", "AvgPool3DGrad", lower=unless_empty(lower_average_gradient))
def average_gradient(op: OpView) -> list[Signature]:
    """Of the shape of the original images and the gradient."""
    found = [Signature((B, S(dim)), (S(dim),)) for dim in free_dims(op, op.outputs[0])]
    return [*found, Signature((B, P), (P,))]


@registry.register("FractionalAvgPoolGrad", lower=unless_empty(lower_average_gradient))
def fractional_average_gradient(op: OpView) -> list[Signature]:
    """Of the shape of the images, the gradient, and where the windows begin, which are drawn alike for all images."""
    found = [Signature((B, S(dim), B, B), (S(dim),)) for dim in (0, 3)] if op.outputs[0].rank == 4 else []
    return [*found, Signature((B, P, B, B), (P,))]


@registry.register("FractionalMaxPoolGrad", lower=unless_empty(same))
def fractional_maximum_gradient(op: OpView) -> list[Signature]:
    """Of the images, what was made of them, the gradient, and where the windows begin."""
    found = [Signature((*[S(dim)] * 3, B, B), (S(dim),)) for dim in (0, 3)]
    return [*found, Signature((B, B, P, B, B), (P,))]


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
