"""Arg-reductions, top-k and targets among the top; with ties, infinities, and targets that are no class."""

import numpy as np
from ml_dtypes import bfloat16

from tests.conformance.cases.gather import some
from tests.conformance.executor import Case

rng = np.random.default_rng(8)
TIES = rng.integers(0, 3, (5, 7)).astype("float32")


def k(value: int, dtype: str = "int32") -> np.ndarray:
    return np.array(value, dtype)


def unbounded(shape: tuple[int, ...]) -> np.ndarray:
    values = rng.normal(size=shape).astype("float32")
    values[0, 1], values[2, 0] = np.inf, -np.inf
    return values


CASES: list[Case] = [
    *(
        Case(type, (values, k(dim)), {"output_type": output}, (1,))
        for type in ("ArgMax", "ArgMin")
        for values, dim, output in (
            (rng.normal(size=(5, 3, 4)), 0, "int64"),
            (rng.normal(size=(5, 3, 4)), -1, "int32"),
            (TIES, 1, "int64"),
            (unbounded((3, 6)), 1, "int64"),
            (rng.integers(-4, 4, (6, 5)).astype(np.int32), 0, "int32"),
            (rng.normal(size=(3, 5)).astype("float16"), 1, "int64"),
            (rng.normal(size=(9,)).astype("float32"), 0, "int64"),
        )
    ),
    Case("ArgMax", (rng.normal(size=(4, 6)).astype(bfloat16), k(1)), {}, (1,)),
    Case("ArgMax", (rng.random((5, 3)) < 0.5, k(1)), {}, (1,)),
    Case("TopKV2", (some((5, 7), 100).astype("float32"), k(3)), {}, (1,)),
    Case("TopKV2", (some((2, 5, 7), 100), k(2)), {}, (1,)),
    Case("TopKV2", (rng.integers(0, 5, (3, 36)).astype("float32"), k(3)), {}, (1,)),
    Case("TopKV2", (some((2, 2, 16), 6, "int64"), k(2, "int64")), {"index_type": "int64"}, (1,)),
    Case("TopKV2", (rng.normal(size=(24,)), k(1, "int16")), {"sorted": False}, (1,)),
    Case("ApproxTopK", (rng.normal(size=(3, 2, 8)).astype("float32"),), {"k": 2}),
    Case("NthElement", (some((5, 7), 100).astype("float32"), k(2)), {}, (1,)),
    Case("IsotonicRegression", (rng.normal(size=(5, 7)).astype("float32"),), {"output_dtype": "float32"}),
    Case("InTopKV2", (some((5, 7), 100).astype("float32"), some((5,), 7), k(3))),
    Case("NearestNeighbors", (some((5, 2), 9).astype("float32"), some((4, 2), 9).astype("float32"), k(2, "int64"))),
    Case("InTopKV2", (TIES, some((5,), 7, "int64"), k(2, "int64")), {}, (2,)),
    Case("InTopKV2", (unbounded((4, 6)), np.array([1, -1, 0, 6], "int32"), k(4)), {}, (2,)),
    Case("InTopK", (some((5, 7), 100).astype("float32"), some((5,), 7)), {"k": 3}),
]
