"""Convolutions and their gradients: strides, dilations, paddings, groups, uneven batches and channels."""

import numpy as np

from tests.conformance.executor import Case

rng = np.random.default_rng(3)


def normal(*shape: int) -> np.ndarray:
    return np.asarray(rng.normal(size=shape))


def sizes(*shape: int) -> np.ndarray:
    return np.array(shape, np.int32)


def length(extent: int, window: int, stride: int, padding: str, dilation: int = 1) -> int:
    """How long a spatial dim comes out."""
    reach = (window - 1) * dilation + 1 if padding == "VALID" else 1
    return -(-(extent - reach + 1) // stride)


def convolutions(kind: str, images: tuple[int, ...], kernel: tuple[int, ...], **attrs: object) -> list[Case]:
    """A convolution and its two gradients; `images` as the data format says."""
    first = str(attrs.get("data_format", "NHWC")).startswith("NC")
    extents = images[2:] if first else images[1:-1]
    strides, dilations = attrs["strides"][1:-1], attrs.get("dilations", (1,) * len(images))[1:-1]
    space = [
        length(extent, window, stride, str(attrs["padding"]), dilation)
        for extent, window, stride, dilation in zip(extents, kernel, strides, dilations, strict=False)
    ]
    channels = kernel[-2] * kernel[-1] if kind.startswith("Depthwise") else kernel[-1]
    made = (images[0], channels, *space) if first else (images[0], *space, channels)
    version = "V2" if kind == "Conv3D" else ""
    return [
        Case(kind, (normal(*images), normal(*kernel)), attrs),
        Case(f"{kind}BackpropInput{version}", (sizes(*images), normal(*kernel), normal(*made)), attrs, (0,)),
        Case(f"{kind}BackpropFilter{version}", (normal(*images), sizes(*kernel), normal(*made)), attrs, (1,)),
    ]


ONE = {"strides": (1, 1, 1, 1), "padding": "SAME"}
TWO = {"strides": (1, 2, 2, 1), "padding": "VALID"}

CASES = [
    *convolutions("Conv2D", (5, 4, 4, 3), (3, 3, 3, 4), **ONE),
    *convolutions("Conv2D", (6, 5, 5, 2), (1, 1, 2, 5), **TWO),
    *convolutions("Conv2D", (1, 5, 6, 4), (3, 2, 4, 2), **TWO),
    *convolutions("Conv2D", (2, 6, 6, 4), (3, 3, 4, 2), **ONE, dilations=(1, 2, 2, 1)),
    *convolutions("DepthwiseConv2dNative", (5, 4, 4, 3), (3, 3, 3, 2), **ONE),
    *convolutions("DepthwiseConv2dNative", (2, 5, 5, 6), (3, 3, 6, 1), **TWO),
    *convolutions("Conv3D", (3, 3, 4, 3, 2), (2, 2, 1, 2, 4), strides=(1, 1, 2, 1, 1), padding="SAME"),
    *convolutions("Conv2D", (5, 4, 4, 6), (3, 3, 2, 9), **ONE),
    *convolutions("Conv2D", (2, 4, 4, 8), (1, 1, 2, 4), **ONE),
    *convolutions("Conv2D", (5, 3, 4, 4), (3, 3, 3, 2), **ONE, data_format="NCHW"),
    *convolutions("Conv2D", (2, 4, 4, 4), (3, 3, 2, 6), **ONE, data_format="NCHW"),
    *convolutions("DepthwiseConv2dNative", (3, 4, 4, 4), (3, 3, 4, 2), **ONE, data_format="NCHW"),
]
