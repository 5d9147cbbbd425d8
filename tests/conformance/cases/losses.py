"""Softmax and cross entropies."""

import numpy as np

from tests.conformance.cases.gather import some
from tests.conformance.executor import Case


def logits(*shape: int, dtype: str = "float32") -> np.ndarray:
    """Some of them large, so that exponentials need the row's maximum."""
    return np.random.default_rng(sum(shape)).normal(0, 30, shape).astype(dtype)


def shares(*shape: int, dtype: str = "float32") -> np.ndarray:
    """Rows that add up to 1."""
    weights = np.random.default_rng(1).uniform(0.1, 1, shape)
    return (weights / weights.sum(-1, keepdims=True)).astype(dtype)


SPARSE, DENSE = "SparseSoftmaxCrossEntropyWithLogits", "SoftmaxCrossEntropyWithLogits"

CASES: list[Case] = [
    *(Case(kind, (logits(*shape),)) for kind in ("Softmax", "LogSoftmax") for shape in ((5, 7), (2, 3, 8), (9,))),
    Case("Softmax", (logits(5, 8, dtype="float16"),)),
    Case("LogSoftmax", (logits(5, 6, dtype="float64"),)),
    Case(SPARSE, (logits(5, 7), some((5,), 7, "int64"))),
    Case(SPARSE, (logits(4, 10, dtype="float64"), some((4,), 10))),
    Case(SPARSE, (logits(3, 8, dtype="float16"), some((3,), 8))),
    Case(SPARSE, (logits(6, 2), some((6,), 2))),
    Case(DENSE, (logits(5, 7), shares(5, 7))),
    Case(DENSE, (logits(4, 8, dtype="float64"), shares(4, 8, dtype="float64"))),
    Case(DENSE, (logits(5, 6), shares(1, 6))),
]
