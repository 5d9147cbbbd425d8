"""Sparse tensors of 5 rows and 6 columns."""

import numpy as np

from tests.conformance.executor import Case

rng = np.random.default_rng(11)
PLACES = np.array([[0, 1], [0, 4], [2, 0], [3, 3], [4, 5]], "int64")
SHAPE = np.array([5, 6], "int64")
VALUES = rng.normal(size=5)
ZERO = np.array(0.0)

CASES: list[Case] = [
    Case("SparseTensorDenseMatMul", (PLACES, VALUES, SHAPE, rng.normal(size=(6, 3)))),
    Case("SparseTensorDenseMatMul", (PLACES, VALUES, SHAPE, rng.normal(size=(3, 6))), {"adjoint_b": True}),
    Case("SparseTensorDenseMatMul", (PLACES, VALUES, SHAPE, rng.normal(size=(5, 3))), {"adjoint_a": True}),
    Case("SparseTensorDenseAdd", (PLACES, VALUES, SHAPE, rng.normal(size=(5, 6)))),
    *(
        Case(f"SparseDenseCwise{kind}", (PLACES, VALUES, SHAPE, rng.uniform(1, 2, shape)))
        for kind in ("Add", "Mul", "Div")
        for shape in ((5, 6), (6,))
    ),
    Case("SparseToDense", (PLACES, SHAPE, VALUES, ZERO), {}, (3,)),
    Case("SparseToDense", (PLACES, SHAPE, np.array(2.0), ZERO), {}, (3,)),
    Case("SparseToDense", (np.array([1, 3, 4], "int32"), np.array([6], "int32"), VALUES[:3], ZERO), {}, (3,)),
    Case("SparseToDense", (PLACES, SHAPE, VALUES, np.array(1.0)), {}, (3,)),
    Case("SparseReduceSum", (PLACES, VALUES, SHAPE, np.array([1], "int32"))),
    Case("SparseReshape", (PLACES, SHAPE, np.array([3, -1], "int64"))),
]
