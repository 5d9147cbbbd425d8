"""Ops on images."""

import numpy as np

from tests.conformance.executor import Case
from tests.conformance.moves import ints, ramp

IMAGES = np.random.default_rng(3).uniform(0.1, 1, (5, 4, 6, 3)).astype("float32")
SIZE = ints(8, 3)

CASES: list[Case] = [
    *(Case(f"Resize{kind}", (IMAGES, SIZE), {}, (1,)) for kind in ("Bilinear", "Bicubic", "NearestNeighbor", "Area")),
    Case("ResizeBilinear", (IMAGES.astype("float64"), SIZE), {"half_pixel_centers": True}, (1,), tolerance=1e-5),
    Case("ResizeNearestNeighborGrad", (IMAGES, ints(2, 3)), {}, (1,)),
    *(Case(f"Resize{kind}Grad", (IMAGES, ramp(5, 8, 3, 3))) for kind in ("Bilinear", "Bicubic")),
    Case(
        "CropAndResize",
        (
            IMAGES,
            np.array([[0, 0, 1, 1], [0.1, 0.2, 0.7, 0.9], [0, 0.5, 1, 0.6]], "float32"),
            ints(4, 0, 2),
            ints(3, 2),
        ),
        {},
        (3,),
    ),
    Case(
        "ExtractImagePatches",
        (IMAGES,),
        {"ksizes": [1, 2, 2, 1], "strides": [1, 2, 2, 1], "rates": [1, 1, 1, 1], "padding": "VALID"},
    ),
    Case("AdjustContrastv2", (IMAGES, np.array(1.5, "float32"))),
    Case("RGBToHSV", (IMAGES,)),
    Case("HSVToRGB", (IMAGES,)),
]
