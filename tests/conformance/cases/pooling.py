"""Pooling, what is like it, and their gradients."""

import numpy as np

from tests.conformance.executor import Case

rng = np.random.default_rng(4)


def normal(*shape: int) -> np.ndarray:
    return np.asarray(rng.normal(size=shape))


def single(*shape: int) -> np.ndarray:
    return normal(*shape).astype(np.float32)


def sizes(*shape: int) -> np.ndarray:
    return np.array(shape, np.int32)


SAME = {"ksize": (1, 2, 2, 1), "strides": (1, 2, 2, 1), "padding": "SAME"}
VALID = {"ksize": (1, 1, 3, 1), "strides": (1, 1, 2, 1), "padding": "VALID"}
FIRST = {"ksize": (1, 1, 2, 2), "strides": (1, 1, 2, 2), "padding": "VALID", "data_format": "NCHW"}
CUBE = {"ksize": (1, 2, 2, 1, 1), "strides": (1, 2, 1, 1, 1), "padding": "SAME"}
IMAGES, HALVED, SHORTER = (5, 4, 5, 3), (5, 2, 3, 3), (5, 4, 2, 3)
VOLUMES, CUBES = (5, 4, 3, 2, 2), (5, 2, 3, 2, 2)
WINDOW = (sizes(1, 2, 2, 1), sizes(1, 2, 2, 1))

CASES = [
    Case("AvgPool", (normal(*IMAGES),), SAME),
    Case("AvgPool", (normal(*IMAGES),), VALID),
    Case("AvgPool3D", (single(*VOLUMES),), CUBE),
    Case("MaxPool", (normal(*IMAGES),), SAME),
    Case("MaxPool", (normal(*IMAGES),), VALID),
    Case(
        "MaxPool",
        (normal(*IMAGES),),
        SAME | {"padding": "EXPLICIT", "explicit_paddings": (0, 0, 1, 0, 0, 1, 0, 0)},
    ),
    Case("MaxPoolV2", (normal(*IMAGES), *WINDOW), {"padding": "SAME"}, (1, 2)),
    Case("MaxPool3D", (single(*VOLUMES),), CUBE),
    Case("MaxPoolWithArgmax", (normal(*IMAGES),), SAME),
    Case("AvgPoolGrad", (sizes(*IMAGES), normal(*HALVED)), SAME, (0,)),
    Case("AvgPoolGrad", (sizes(*IMAGES), normal(*SHORTER)), VALID, (0,)),
    Case("AvgPool3DGrad", (sizes(*VOLUMES), single(*CUBES)), CUBE, (0,)),
    Case("AvgPool", (normal(5, 3, 4, 4),), FIRST),
    Case("MaxPool", (normal(5, 3, 4, 4),), FIRST),
    Case("AvgPoolGrad", (sizes(5, 3, 4, 4), normal(5, 3, 2, 2)), FIRST, (0,)),
]


def pooled(images: np.ndarray, attrs: dict[str, object]) -> np.ndarray:
    """The maximum over windows; SAME pads the end of a dim, and the start where the padding is more than one."""
    for dim, (size, stride) in enumerate(zip(attrs["ksize"], attrs["strides"], strict=True)):
        extent = images.shape[dim]
        count = -(-extent // stride) if attrs["padding"] == "SAME" else (extent - size) // stride + 1
        before = max(0, (count - 1) * stride + size - extent) // 2
        windows = [
            images.take(range(max(0, k * stride - before), min(extent, k * stride - before + size)), dim).max(dim)
            for k in range(count)
        ]
        images = np.stack(windows, dim)
    return images


def maximum_gradients(suffix: str, shape: tuple[int, ...], attrs: dict[str, object]) -> list[Case]:
    """The gradient needs the images and what the pooling made; the gradient of the gradient has the images' shape."""
    images = single(*shape)
    made = pooled(images, attrs)
    return [
        Case(f"MaxPool{suffix}Grad", (images, made, single(*made.shape)), attrs),
        Case(f"MaxPool{suffix}GradGrad", (images, made, single(*shape)), attrs),
    ]


CASES += [
    *maximum_gradients("", IMAGES, SAME),
    *maximum_gradients("", IMAGES, VALID),
    *maximum_gradients("3D", VOLUMES, CUBE),
]
CASES += [
    Case(case.type + "V2", (*case.inputs, *WINDOW), {"padding": "SAME"}, (3, 4))
    for case in maximum_gradients("", IMAGES, SAME)
]


PLACED = SAME | {"include_batch_in_index": False}
COLUMNS, CHANNELS = IMAGES[2:]
ROW, COLUMN, CHANNEL = np.indices(HALVED[1:])
FOUND = np.broadcast_to((2 * ROW * COLUMNS + 2 * COLUMN) * CHANNELS + CHANNEL, HALVED)
"""The first place of each window, within its image."""
PLAIN = normal(*IMAGES)
ENDS = np.array([0, 2, 4], "int64"), np.array([0, 2, 3, 5], "int64")
"""Where the windows of rows and columns begin and end."""


def pooled_by(images: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """The maximum between ends."""
    return np.maximum.reduceat(np.maximum.reduceat(images, rows[:-1], 1), columns[:-1], 2)


WINDOWS = {"strides": (1, 2, 1, 1), "rates": (1, 1, 1, 1), "padding": "SAME"}
CASES += [
    Case("MaxPoolGradWithArgmax", (single(*IMAGES), single(*HALVED), FOUND), PLACED),
    Case("Dilation2D", (normal(*IMAGES), normal(2, 3, 3)), WINDOWS),
    Case("Dilation2DBackpropInput", (normal(*IMAGES), normal(2, 3, 3), normal(5, 2, 5, 3)), WINDOWS),
    Case("Dilation2DBackpropFilter", (normal(*IMAGES), normal(2, 3, 3), normal(5, 2, 5, 3)), WINDOWS),
    Case("LRN", (single(5, 2, 3, 8),), {"depth_radius": 2}),
    Case("LRNGrad", (single(5, 2, 3, 8), single(5, 2, 3, 8), single(5, 2, 3, 8)), {"depth_radius": 2}),
    Case("FractionalAvgPoolGrad", (np.array(IMAGES, "int64"), normal(5, 2, 3, 3), *ENDS), {}, (0,)),
    Case("FractionalMaxPoolGrad", (PLAIN, pooled_by(PLAIN, *ENDS), normal(5, 2, 3, 3), *ENDS)),
]
