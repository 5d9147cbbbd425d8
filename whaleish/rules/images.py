"""Ops on images whose spatial dims depend on each other: resizing, cropping, patches, colours."""

from __future__ import annotations

from whaleish.rules.forms import names
from whaleish.rules.movement import LINEAR, carried, empty_as_zeros, place
from whaleish.rules.rule import OpView, Signature, registry
from whaleish.sbp import P, S

_BATCH_AND_CHANNELS = ((0, 0), (3, 3))


@registry.register(
    *names("ResizeBilinear ResizeBicubic ResizeNearestNeighbor ResizeNearestNeighborGrad ResizeArea"),
    lower=empty_as_zeros(),
)
def resize(op: OpView) -> list[Signature]:
    """Images (or their gradients) and a size in pixels. Always NHWC, and linear."""
    same_numbers = op.inputs[0].dtype == op.outputs[0].dtype
    return carried(op, _BATCH_AND_CHANNELS, LINEAR if same_numbers else ())


@registry.register("ResizeBilinearGrad", "ResizeBicubicGrad", lower=empty_as_zeros())
def resize_gradient(op: OpView) -> list[Signature]:
    """Of the images only the shape matters, so a sum may have them whole."""
    found = [place(op, {0: S(dim), 1: S(dim)}, S(dim)) for dim, _ in _BATCH_AND_CHANNELS]
    return [*found, place(op, {0: P}, P)]


@registry.register("CropAndResize", lower=empty_as_zeros())
def crop_and_resize(op: OpView) -> list[Signature]:
    """Images, boxes [N, 4], the image of each box [N]: boxes may be split where all images are at hand."""
    return [place(op, {1: S(0), 2: S(0)}, S(0)), place(op, {0: S(3)}, S(3))]


@registry.register("ExtractImagePatches", lower=empty_as_zeros())
def patches(op: OpView) -> list[Signature]:
    return carried(op, [(0, 0)], LINEAR)


@registry.register("AdjustContrastv2", "RGBToHSV", "HSVToRGB", lower=empty_as_zeros())
def adjust(op: OpView) -> list[Signature]:
    """Contrast is about the mean over the last three dims; colours are the last dim."""
    own = 3 if op.type == "AdjustContrastv2" else 1
    return carried(op, ((dim, dim) for dim in range(op.inputs[0].rank - own)))
