"""Histograms, and places in sorted rows."""

import numpy as np

from tests.conformance.cases.gather import some
from tests.conformance.executor import Case

rng = np.random.default_rng(9)
BINS = np.array(6, "int32")
NONE = np.zeros(0, "float32")
SORTED = np.sort(rng.integers(0, 9, (5, 7)), 1).astype("float32")
VALUES = rng.integers(-1, 10, (5, 3)).astype("float32")

CASES: list[Case] = [
    *(Case("Bincount", (some(shape, 8), BINS, weights)) for shape in ((7,), (5, 2)) for weights in (NONE,)),
    Case("Bincount", (some((5, 2), 8), BINS, rng.normal(size=(5, 2)))),
    Case("Bincount", (some((7,), 8), BINS, np.zeros(0, "int32"))),
    *(
        Case("DenseBincount", (some(shape, 8, dtype), np.array(6, dtype), NONE), {"binary_output": binary})
        for shape, dtype in (((7,), "int32"), ((5, 3), "int64"))
        for binary in (False, True)
    ),
    Case("DenseBincount", (some((5, 3), 8), BINS, rng.normal(size=(5, 3)))),
    Case("DenseBincount", (some((7,), 8), BINS, rng.integers(0, 5, (7,)))),
    Case("HistogramFixedWidth", (rng.normal(size=(5, 3)), np.array([-1.0, 1.0]), BINS), {}, (1, 2)),
    *(
        Case(type, (SORTED, VALUES), {"out_type": dtype})
        for type in ("LowerBound", "UpperBound")
        for dtype in ("int32", "int64")
    ),
    Case("LowerBound", (SORTED.astype("int32"), VALUES.astype("int32"))),
]
