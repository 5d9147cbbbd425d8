"""Reductions over one dim, several and all, with and without keeping them."""

import numpy as np

from tests.conformance.executor import Case

rng = np.random.default_rng(5)


def normal(*shape: int) -> np.ndarray:
    return np.asarray(rng.normal(size=shape))


def axes(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


NUMBERS = ("Sum", "Mean", "Max", "Min", "Prod", "EuclideanNorm")

CASES = [
    Case(type, (normal(*shape), dims), {"keep_dims": keep}, (1,))
    for type in NUMBERS
    for shape, dims, keep in (
        ((5, 3, 4), axes(0, -1), False),
        ((6, 2), axes(0), True),
        ((5, 4), axes(0, 1), False),
        ((1, 3, 2), np.array(1, np.int32), False),
        ((4, 3), axes(), False),
    )
]
CASES += [
    Case(type, (rng.random((5, 4, 3)) < 0.4, dims), {"keep_dims": keep}, (1,))
    for type in ("All", "Any")
    for dims, keep in ((axes(0), False), (axes(1, 2), True), (axes(0, 1, 2), False))
]
CASES += [
    Case("Sum", (rng.integers(-9, 9, (5, 3)).astype(np.int32), axes(0)), {}, (1,)),
    Case("Mean", (rng.integers(-9, 9, (5, 3)).astype(np.int32), axes(0)), {}, (1,)),
    Case("Max", (rng.integers(-9, 9, (5, 3)).astype(np.int64), axes(0)), {}, (1,)),
    Case("Mean", (normal(5, 3).astype(np.float32), np.array([0], np.int64)), {}, (1,)),
    Case("Mean", (normal(5, 3) + 1j * normal(5, 3), axes(0)), {}, (1,)),
    Case("Sum", (normal(5, 3), axes(0))),
    Case("Mean", (normal(5, 3), axes(1))),
    Case("L2Loss", (normal(5, 2),)),
]
# Dims that fall into blocks.
CASES += [
    Case(type, (rng.uniform(0.5, 1.5, shape), dims), {"keep_dims": keep}, (1,))
    for type in ("Prod", "EuclideanNorm")
    for shape, dims, keep in (((12, 3), axes(0), False), ((3, 6, 4), axes(0, 1), True), ((9,), axes(0), False))
]
CASES += [
    Case("Prod", (rng.integers(1, 3, (8, 2)).astype(np.int32), axes(0)), {}, (1,)),
    Case("EuclideanNorm", (normal(6, 2).astype(np.float32), axes(0)), {}, (1,)),
    Case("EuclideanNorm", (normal(6, 2) + 1j, axes(0)), {}, (1,)),
]
