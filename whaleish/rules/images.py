"""Ops on images whose spatial dims depend on each other: resizing, warping, cropping, patches, colours, boxes."""

from __future__ import annotations

from whaleish.rules.forms import constant_ints, names
from whaleish.rules.movement import LINEAR, carried, empty_as_zeros, partly, place, when_divided
from whaleish.rules.rule import Lowering, OpView, Ref, Signature, registry
from whaleish.sbp import B, P, S

_BATCH_AND_CHANNELS = ((0, 0), (3, 3))


@registry.register(
    *names("ResizeBilinear ResizeBicubic ResizeNearestNeighbor ResizeNearestNeighborGrad ResizeArea"),
    lower=empty_as_zeros(),
)
def resize(op: OpView) -> list[Signature]:
    """Images (or their gradients) and a size in pixels. Always NHWC, and linear."""
    same_numbers = op.inputs[0].dtype == op.outputs[0].dtype
    return carried(op, _BATCH_AND_CHANNELS, LINEAR if same_numbers else ())


@registry.register("ResizeBilinearGrad", "ResizeBicubicGrad", "ScaleAndTranslateGrad", lower=empty_as_zeros())
def resize_gradient(op: OpView) -> list[Signature]:
    """Of the images only the shape matters, so a sum may have them whole."""
    found = [place(op, {0: S(dim), 1: S(dim)}, S(dim)) for dim, _ in _BATCH_AND_CHANNELS]
    return [*found, place(op, {0: P}, P)]


@registry.register("ScaleAndTranslate", lower=empty_as_zeros())
def scale_and_translate(op: OpView) -> list[Signature]:
    """Images, a size, and by how much all of them are scaled and shifted; what is made is float32."""
    return carried(op, _BATCH_AND_CHANNELS, LINEAR if op.inputs[0].dtype == op.outputs[0].dtype else ())


@registry.register("ImageProjectiveTransformV2", "ImageProjectiveTransformV3", lower=empty_as_zeros())
def warp(op: OpView) -> list[Signature]:
    """Images, transforms (one for all or one for each), a size and, in V3, what lies outside the images."""
    images, transforms = op.inputs[0].shape, op.inputs[1].shape
    if images is None or transforms is None:
        return []
    each = S(0) if transforms[0] == images[0] else B
    outside = op.constants[3] if len(op.inputs) > 3 else None
    is_linear = len(op.inputs) == 3 or (outside is not None and not outside.any())
    whole_numbers = "int" in op.inputs[0].dtype  # They are rounded when they are interpolated.
    found = [place(op, {0: S(0), 1: each}, S(0)), place(op, {0: S(3)}, S(3))]
    return found + partly(op, [0], LINEAR if is_linear and not whole_numbers else ())


@registry.register("CropAndResize", lower=empty_as_zeros())
def crop_and_resize(op: OpView) -> list[Signature]:
    """Images, boxes [N, 4], the image of each box [N]: boxes may be split where all images are at hand."""
    return [place(op, {1: S(0), 2: S(0)}, S(0)), place(op, {0: S(3)}, S(3))]


@when_divided
def _channels_here(low: Lowering) -> list[Ref]:
    """The size of the images names their channels."""
    return low.same({3: low.const(low.shape_out(0), "int32")})


@registry.register("CropAndResizeGradImage", lower=empty_as_zeros(_channels_here))
def crop_gradient(op: OpView) -> list[Signature]:
    """Gradients of the crops, boxes, images of the boxes, size of the images: every box adds to its image."""
    if constant_ints(op, 3) is None:
        return []
    return [place(op, {0: S(0), 1: S(0), 2: S(0)}, P), place(op, {0: S(3)}, S(3)), place(op, {0: P}, P)]


@registry.register("CropAndResizeGradBoxes", lower=empty_as_zeros())
def box_gradient(op: OpView) -> list[Signature]:
    """Gradients of the crops, images, boxes, images of the boxes -> [N, 4], summed over pixels and channels."""
    found = [place(op, {0: S(0), 2: S(0), 3: S(0)}, S(0)), place(op, {0: S(3), 1: S(3)}, P)]
    return [*found, place(op, {0: P}, P)]


@registry.register("ExtractImagePatches", "ExtractVolumePatches", lower=empty_as_zeros())
def patches(op: OpView) -> list[Signature]:
    return carried(op, [(0, 0)], LINEAR)


@registry.register("ExtractGlimpse", "ExtractGlimpseV2", lower=empty_as_zeros())
def glimpses(op: OpView) -> list[Signature]:
    """Images, a size, and where to look in each; without noise outside of the image, which would be drawn."""
    drawn = bool(op.attrs.get("uniform_noise", True)) or op.attrs.get("noise") in ("uniform", "gaussian")
    return [] if drawn else [place(op, {0: S(0), 2: S(0)}, S(0))]


@registry.register("DrawBoundingBoxes", "DrawBoundingBoxesV2", lower=empty_as_zeros())
def boxes_drawn(op: OpView) -> list[Signature]:
    """Images, boxes of each and, in V2, colours for all."""
    return [place(op, {0: S(0), 1: S(0)}, S(0))]


@registry.register("CombinedNonMaxSuppression", lower=empty_as_zeros())
def suppression(op: OpView) -> list[Signature]:
    """Boxes and scores of each image -> the best of them, and how many; images do not look at each other."""
    return [place(op, {0: S(0), 1: S(0)}, S(0))]


@registry.register(
    *names("AdjustContrastv2 AdjustHue AdjustSaturation RGBToHSV HSVToRGB"),
    lower=empty_as_zeros(),
)
def adjust(op: OpView) -> list[Signature]:
    """Contrast is about the mean over the last three dims; colours are the last dim."""
    own = 3 if op.type == "AdjustContrastv2" else 1
    return carried(op, ((dim, dim) for dim in range(op.inputs[0].rank - own)))
