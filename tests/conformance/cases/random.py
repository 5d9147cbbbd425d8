"""Stateless random numbers: a part's draw equals the slice bit for bit."""

import numpy as np

from tests.conformance.executor import Case

KEY = np.array([12345678901234], "uint64")
COUNTERS = [np.array([0, 2956673722964415482], "uint64"), np.array([2**64 - 3, 7], "uint64")]
SHAPES = [(5, 3), (4, 8), (1, 7, 2), (33,), (6, 1)]
KINDS = ("RandomUniform", "RandomNormal", "TruncatedNormal")
FLOATS = ("float32", "float64", "float16", "bfloat16")


def counted(type: str, shape: tuple[int, ...], dtype: str, place: int = 0, algorithm: int = 1, *limits: int) -> Case:
    inputs = (np.array(shape, "int32"), KEY, COUNTERS[place], np.array(algorithm, "int32"))
    bounds = tuple(np.array(limit, dtype) for limit in limits)
    return Case(type, inputs + bounds, {"dtype": dtype}, (0, 3), exact=True)


def seeded(type: str, shape: tuple[int, ...], dtype: str, *limits: int) -> Case:
    inputs = (np.array(shape, "int64"), np.array([3, -4], "int32"))
    return Case(type, inputs + tuple(np.array(limit, dtype) for limit in limits), {"dtype": dtype}, (0,), exact=True)


CASES: list[Case] = [
    *(counted(f"Stateless{kind}V2", SHAPES[0], dtype) for kind in KINDS for dtype in FLOATS),
    *(counted(f"Stateless{kind}V2", shape, "float32", place=1) for kind in KINDS for shape in SHAPES),
    counted("StatelessRandomUniformV2", (5, 3), "float32", 0, 3),
    counted("StatelessTruncatedNormalV2", (3000, 3), "float64"),
    *(counted("StatelessRandomUniformIntV2", (5, 7), dtype, 0, 1, -3, 90) for dtype in ("int32", "int64")),
    *(counted("StatelessRandomUniformFullIntV2", (5, 7), dtype) for dtype in ("int32", "int64", "uint32", "uint64")),
    *(seeded(f"Stateless{kind}", (5, 3), dtype) for kind in KINDS for dtype in ("float32", "float64", "float16")),
    seeded("StatelessRandomUniformInt", (5, 3), "int32", 2, 99),
    seeded("StatelessRandomUniformFullInt", (5, 3), "int64"),
    Case("SobolSample", (*(np.array(n, "int32") for n in (3, 7, 2)),), {}, (0, 1), exact=True),
    Case("RandomIndexShuffle", (np.arange(7, dtype="int32"), np.array([1, 2, 3], "int32"), np.array(6, "int32"))),
]
