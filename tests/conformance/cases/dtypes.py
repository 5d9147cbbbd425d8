"""Each kind of dtype, through ops that take many of them."""

import numpy as np
from ml_dtypes import bfloat16

from tests.conformance.cases.gather import some
from tests.conformance.executor import Case
from tests.conformance.moves import ints

rng = np.random.default_rng(13)

FLOATS = ("float16", bfloat16, "float64")
COMPLEX = ("complex64", "complex128")
INTEGERS = ("int8", "uint8", "int16", "int64")
NUMBERS = (*FLOATS, *COMPLEX, *INTEGERS)
ONE = np.array(1, "int32")


def some_of(dtype: object, *shape: int) -> np.ndarray:
    """Strings and bools too; numbers small enough for every dtype."""
    if dtype == "string":
        return rng.integers(0, 99, shape).astype(str).astype(object)
    if dtype in INTEGERS:
        return rng.integers(1, 9, shape).astype(dtype)
    if dtype == "bool":
        return rng.random(shape) < 0.5
    values = rng.uniform(0.5, 2.0, shape)
    return (values + 1j * rng.uniform(0.5, 2.0, shape) if dtype in COMPLEX else values).astype(dtype)


def moves(dtype: object) -> list[Case]:
    """Ops that move elements take every dtype."""
    x, y = some_of(dtype, 5, 4), some_of(dtype, 5, 4)
    return [
        Case("Identity", (x,)),
        Case("Reshape", (x, ints(10, 2)), {}, (1,)),
        Case("Transpose", (x, ints(1, 0)), {}, (1,)),
        Case("ConcatV2", (x, y, ONE), {}, (2,)),
        Case("Split", (ONE, x), {"num_split": 2}, (0,)),
        Case("Pack", (x, y), {"axis": 1}),
        Case("Slice", (x, ints(0, 1), ints(5, 2)), {}, (1, 2)),
        Case("StridedSlice", (x, ints(0, 1), ints(0, 3), ints(1, 1)), {"begin_mask": 1, "end_mask": 1}, (1, 2, 3)),
        Case("Tile", (x, ints(1, 2)), {}, (1,)),
        Case("BroadcastTo", (x[:1], ints(3, 4)), {}, (1,)),
        Case("ReverseV2", (x, ints(1)), {}, (1,)),
        Case("GatherV2", (x, some((3,), 5), ONE - 1), {}, (2,)),
        Case("GatherNd", (x, some((3, 1), 5))),
        Case("SelectV2", (x == y, x, y)),
        Case("Equal", (x, y)),
    ]


def arithmetic(dtype: object) -> list[Case]:
    """Sums and products take every number."""
    x, y = some_of(dtype, 5, 4), some_of(dtype, 4)
    return [
        *(Case(type, (x, y)) for type in ("AddV2", "Sub", "Mul")),
        *(Case(type, (x,)) for type in ("Square", "ZerosLike")),
        Case("AddN", (x, x, x)),
        Case("Sum", (x, ints(0)), {}, (1,)),
        Case("Prod", (x, ints(0)), {}, (1,)),
        Case("Cumsum", (x, ONE), {}, (1,)),
        Case("UnsortedSegmentSum", (x, some((5,), 3), np.array(3, "int32")), {}, (2,)),
        Case("ScatterNd", (some((5, 1), 6), x, ints(6, 4)), {}, (2,)),
        Case("Pad", (x, np.array([[0, 0], [1, 0]])), {}, (1,)),
    ]


def ordered(dtype: object) -> list[Case]:
    """Numbers of which one is the largest."""
    x, y = some_of(dtype, 5, 4), some_of(dtype, 5, 4)
    return [
        *(Case(type, (x, y)) for type in ("Maximum", "Minimum", "FloorDiv", "Less")),
        *(Case(type, (x, ints(1)), {}, (1,)) for type in ("Max", "Min", "Mean")),
        Case("ArgMax", (x, ONE), {}, (1,)),
        Case("TopKV2", (x, ONE + 1), {}, (1,)),
        Case("UnsortedSegmentMax", (x, some((5,), 3), np.array(3, "int32")), {}, (2,)),
        Case("TensorScatterMax", (x, some((2, 1), 5), y[:2])),
    ]


def real(dtype: object) -> list[Case]:
    """What models compute."""
    x = some_of(dtype, 5, 4)
    images, kernel = some_of(dtype, 5, 4, 4, 2), some_of(dtype, 3, 3, 2, 4)
    window = {"ksize": (1, 2, 2, 1), "strides": (1, 2, 2, 1), "padding": "SAME"}
    return [
        *(Case(type, (x,)) for type in ("Exp", "Log", "Relu", "Sigmoid", "Tanh", "Erf", "Rsqrt", "Softplus")),
        Case("Softmax", (x,)),
        Case("Conv2D", (images, kernel), {"strides": (1, 1, 1, 1), "padding": "SAME"}),
        Case("MaxPool", (images,), window),
        Case("AvgPool", (images,), window),
        Case("BiasAdd", (x, some_of(dtype, 4))),
        Case("L2Loss", (x,)),
    ]


def products(dtype: object) -> list[Case]:
    return [
        Case("MatMul", (some_of(dtype, 5, 3), some_of(dtype, 3, 4))),
        Case("BatchMatMulV2", (some_of(dtype, 2, 5, 3), some_of(dtype, 2, 3, 4))),
        Case("Einsum", (some_of(dtype, 5, 3), some_of(dtype, 3, 4)), {"equation": "ij,jk->ik"}),
    ]


HALF = some_of("float16", 6, 3, 2, 4)
VECTORS = [some_of("float32", 4) for _ in range(4)]
CASES: list[Case] = [
    *(case for dtype in (*NUMBERS, "bool", "string") for case in moves(dtype)),
    *(case for dtype in NUMBERS for case in arithmetic(dtype)),
    *(case for dtype in (*FLOATS, *INTEGERS) for case in ordered(dtype)),
    *(case for dtype in FLOATS for case in real(dtype)),
    *(case for dtype in (*FLOATS, *COMPLEX) for case in products(dtype)),
    Case("FusedBatchNormV3", (HALF, *VECTORS), {"is_training": False}, unset=(3, 4)),
    Case("FusedBatchNormV3", (HALF, *VECTORS), {"is_training": True}),
]
