"""Ops on images."""

import numpy as np

from tests.conformance.executor import Case
from tests.conformance.moves import ints, ramp

IMAGES = np.random.default_rng(3).uniform(0.1, 1, (5, 4, 6, 3)).astype("float32")
SIZE = ints(8, 3)
BOXES = np.array([[0, 0, 1, 1], [0.1, 0.2, 0.7, 0.9], [0, 0.5, 1, 0.6]], "float32")
BOXES_OF_EACH = np.sort(np.random.default_rng(4).random((5, 2, 2, 2)), 2).reshape(5, 2, 4).astype("float32")
SCORES = np.random.default_rng(5).random((5, 2, 3)).astype("float32")
CENTERS = np.random.default_rng(6).uniform(-0.5, 0.5, (5, 2)).astype("float32")
LIMIT = np.array(0.4, "float32")
SCALE, SHIFT = np.array([2, 0.5], "float32"), np.array([0.5, -1], "float32")
TURNS = np.array([[1, 0.1 * k, 0.5, -0.1 * k, 0.9, k, 0, 0] for k in range(5)], "float32")
NOUGHT = np.array(0, "float32")
WINDOWS = {"ksizes": (1, 2, 2, 1), "strides": (1, 2, 2, 1), "rates": (1, 1, 1, 1), "padding": "VALID"}

CASES: list[Case] = [
    *(Case(f"Resize{kind}", (IMAGES, SIZE), {}, (1,)) for kind in ("Bilinear", "Bicubic", "NearestNeighbor", "Area")),
    Case("ResizeBilinear", (IMAGES.astype("float64"), SIZE), {"half_pixel_centers": True}, (1,), tolerance=1e-5),
    Case("ResizeNearestNeighborGrad", (IMAGES, ints(2, 3)), {}, (1,)),
    *(Case(f"Resize{kind}Grad", (IMAGES, ramp(5, 8, 3, 3))) for kind in ("Bilinear", "Bicubic")),
    Case("CropAndResize", (IMAGES, BOXES, ints(4, 0, 2), ints(3, 2)), {}, (3,)),
    *(Case("ExtractImagePatches", (IMAGES.astype(dtype),), WINDOWS) for dtype in ("float64", "int32")),
    Case(
        "ExtractVolumePatches",
        (ramp(5, 4, 2, 4, 3),),
        {"ksizes": (1, 2, 1, 2, 1), "strides": (1, 2, 1, 2, 1), "padding": "VALID"},
    ),
    *(
        Case("ScaleAndTranslate", (IMAGES, SIZE, SCALE, SHIFT), {"kernel_type": kernel, "antialias": antialias}, (1,))
        for kernel, antialias in (("lanczos3", True), ("triangle", False))
    ),
    Case("ScaleAndTranslateGrad", (ramp(5, 8, 3, 3) / 99, IMAGES, SCALE, SHIFT), {"kernel_type": "lanczos3"}),
    Case("ImageProjectiveTransformV2", (IMAGES, TURNS, SIZE), {"interpolation": "BILINEAR"}, (2,)),
    *(
        Case("ImageProjectiveTransformV3", inputs, {"interpolation": kind, "fill_mode": mode}, (2, 3))
        for inputs, kind, mode in (
            ((IMAGES, TURNS, SIZE, NOUGHT), "BILINEAR", "CONSTANT"),
            ((IMAGES, TURNS[:1], SIZE, NOUGHT), "NEAREST", "REFLECT"),
            ((IMAGES, TURNS, SIZE, NOUGHT + 1), "BILINEAR", "CONSTANT"),
            (((IMAGES * 99).astype("uint8"), TURNS, SIZE, NOUGHT), "BILINEAR", "WRAP"),
        )
    ),
    Case("CropAndResizeGradImage", (ramp(3, 3, 2, 3), BOXES, ints(4, 0, 2), ints(5, 4, 6, 3)), {"T": "float32"}, (3,)),
    Case("CropAndResizeGradBoxes", (ramp(3, 3, 2, 3) / 50, IMAGES, BOXES, ints(4, 0, 2))),
    *(
        Case(f"ExtractGlimpse{version}", (IMAGES, ints(3, 2), CENTERS), {"uniform_noise": False, "noise": "zero"}, (1,))
        for version in ("", "V2")
    ),
    Case("DrawBoundingBoxes", (IMAGES, BOXES_OF_EACH)),
    Case("DrawBoundingBoxesV2", (IMAGES, BOXES_OF_EACH, ramp(2, 3))),
    Case(
        "CombinedNonMaxSuppression",
        (BOXES_OF_EACH[:, :, None], SCORES, ints(2)[0], ints(2)[0], LIMIT, LIMIT),
        {},
        (2, 3),
    ),
    Case("AdjustHue", (IMAGES, np.array(0.2, "float32"))),
    Case("AdjustSaturation", (IMAGES, np.array(1.5, "float32"))),
    Case("AdjustContrastv2", (IMAGES, np.array(1.5, "float32"))),
    Case("RGBToHSV", (IMAGES,)),
    Case("HSVToRGB", (IMAGES,)),
]
