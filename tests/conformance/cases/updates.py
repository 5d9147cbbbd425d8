"""Scatters into variables: what the variables hold afterwards is compared."""

import numpy as np

from tests.conformance.cases.variables import ROWS, normal, number, rng, slot, variable
from tests.conformance.executor import Case, Resource

IDS, PAIRS = np.array([[4, 0], [2, 4], [1, 1]], np.int32), np.array([[4, 0], [2, 1]], np.int64)
EACH = ("Add", "Sub", "Max", "Min", "Mul", "Div")
CASES: list[Case] = [
    *(Case(f"ResourceScatter{kind}", (slot(5, 4), IDS, normal(3, 2, 4) + 3)) for kind in EACH),
    *(
        Case(f"ResourceScatter{kind}", (Resource(rng.integers(-9, 9, 6)), ROWS, rng.integers(-9, 9, 3)))
        for kind in ("Max", "Min", "Mul")
    ),
    Case("ResourceScatterUpdate", (slot(5, 4), ROWS, normal(3, 4))),
    Case("ResourceScatterAdd", (slot(6), IDS, number(2.0))),
    Case("ResourceScatterSub", (slot(6), ROWS.astype(np.int64), normal(3))),
    *(
        Case(f"ResourceScatterNd{kind}", (variable(5, 2, 3), PAIRS, normal(2, 3)))
        for kind in ("Add", "Sub", "Max", "Min", "Update")
    ),
    Case("ResourceScatterNdAdd", (slot(6), np.array([[5], [0], [5]], np.int32), normal(3))),
]
