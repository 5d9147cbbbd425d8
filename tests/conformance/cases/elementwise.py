"""Elementwise ops: values in each function's domain, even and uneven shapes, broadcasting, and each kind of dtype."""

import numpy as np

from tests.conformance.executor import Case
from whaleish.rules import elementwise as family

rng = np.random.default_rng(1)

ABOVE_ONE = {"Acosh"}
IN_ONE = {"Acos", "Asin", "Atanh", "Erfinv", "Ndtri"}
INTEGER = {"BitwiseAnd", "BitwiseOr", "BitwiseXor", "Invert", "LeftShift", "PopulationCount", "RightShift"}
BOOL = {"LogicalAnd", "LogicalNot", "LogicalOr"}
COMPLEX = {"Angle", "ComplexAbs", "Conj", "Imag", "Real"}
ATTRS = {
    "Bucketize": {"boundaries": (-0.5, 0.0, 1.0)},
    "CheckNumerics": {"message": "of a test"},
    "CheckNumericsV2": {"message": "of a test"},
    "Angle": {"Tout": "float64"},
    "ComplexAbs": {"Tout": "float64"},
    "Imag": {"Tout": "float64"},
    "Real": {"Tout": "float64"},
    "Complex": {"Tout": "complex128"},
    "ApproximateEqual": {"tolerance": 0.3},
}


def values(type: str, shape: tuple[int, ...]) -> np.ndarray:
    """Numbers for which the op is defined."""
    if type in BOOL:
        return rng.random(shape) < 0.5
    if type in INTEGER:
        return rng.integers(0, 6, shape).astype(np.int32)
    if type in ABOVE_ONE:
        return rng.uniform(1.1, 3.0, shape)
    if type in IN_ONE:
        return rng.uniform(0.05, 0.95, shape)
    if type in COMPLEX:
        return rng.normal(size=shape) + 1j * rng.normal(size=shape)
    if type in family.RISING or type in family.FALLING or type in family.LINEAR or type == "Bucketize":
        return rng.normal(size=shape)
    return rng.uniform(0.2, 3.0, shape)


def ints(*shape: int) -> np.ndarray:
    return rng.integers(-5, 6, shape).astype(np.int32)


def normal(*shape: int) -> np.ndarray:
    return np.asarray(rng.normal(size=shape))


UNARY = [*family.UNARY, *family.LINEAR, *family.RISING, *family.FALLING]
CASES = [Case(type, (values(type, (6, 3)),), ATTRS.get(type, {})) for type in dict.fromkeys(UNARY)]
CASES += [Case(type, (values(type, (1, 5)),), ATTRS.get(type, {})) for type in ("Relu", "Neg", "Identity", "Sigmoid")]
CASES += [Case("Identity", (value,)) for value in (ints(5), np.array(["a", "b", "c"], object), normal(4) > 0, normal())]
CASES += [Case("Neg", (ints(5, 2),)), Case("LeakyRelu", (normal(5),), {"alpha": -0.5})]

CASES += [
    Case("Cast", (value,), {"DstT": dtype})
    for value, dtype in (
        (normal(5, 2).astype(np.float32), "float64"),
        (normal(5, 2), "float32"),
        (normal(5, 2).astype(np.float32), "bfloat16"),
        (ints(5), "float32"),
        (normal(5), "int32"),
        (ints(5), "int64"),
        (normal(4) > 0, "float32"),
    )
]
CASES += [
    Case(type, (value,)) for type in ("OnesLike", "ZerosLike") for value in (normal(5, 2), ints(4), normal(3) > 0)
]
CASES += []

BROADCASTS = (((6, 3), (6, 3)), ((5, 1), (1, 4)), ((2, 5, 3), (3,)), ((), (5,)))
ADDED = [*family.SUMS, *family.PRODUCTS, *family.QUOTIENTS, "Maximum", "Minimum"]
CASES += [
    Case(type, (values(type, left), values(type, right)), ATTRS.get(type, {}))
    for type in ADDED
    for left, right in BROADCASTS
]
CASES += [
    Case(type, (values(type, left), values(type, right)), ATTRS.get(type, {}))
    for number, type in enumerate(family.BINARY)
    for left, right in (BROADCASTS[0], BROADCASTS[1 + number % 3])
]
CASES += [Case(type, (ints(5), ints(5) * 2 + 1)) for type in ("AddV2", "Mul", "FloorDiv", "Div", "Maximum", "Equal")]
CASES += [
    Case("Add", (np.array(["a", "b", "c"], object), np.array("d", object))),
    Case("AddV2", (normal(5) + 1j, normal(5) * 1j)),
    Case("DivNoNan", (normal(6), np.array([0.0, 1, 2, 0, 4, 5]))),
    Case("MulNoNan", (normal(6), np.array([0.0, 1, 2, 0, 4, 5]))),
    Case("Xlogy", (np.array([0.0, 1, 2]), np.array([0.0, 1, 2]))),
    Case("ApproximateEqual", (normal(5, 2), normal(5, 2)), ATTRS["ApproximateEqual"]),
    Case("Betainc", tuple(rng.uniform(0.1, 0.9, (5, 2)) for _ in range(3))),
    Case("Polygamma", (np.full((5, 2), 2.0), rng.uniform(1, 2, (5, 2)))),
    Case("Zeta", (rng.uniform(2, 3, (5, 2)), rng.uniform(1, 2, (5, 2)))),
]
CASES += [Case(type, (normal(6, 3), rng.uniform(0.2, 2.0, (6, 3)))) for type in family.GRADIENT_FIRST]
CASES += [Case(type, (rng.uniform(0.2, 2.0, (5, 3)), normal(5, 3))) for type in family.GRADIENT_SECOND]
CASES += [
    Case("AddN", (normal(5, 4), normal(5, 4), normal(5, 4))),
    Case("AddN", (ints(6),)),
    Case("AccumulateNV2", (normal(5, 4), normal(5, 4)), {"shape": (5, 4)}),
    Case("IdentityN", (normal(5, 4), normal(4))),
    Case("IdentityN", (normal(6), normal(6, 2), ints(3))),
    Case("Select", (normal(5, 4) > 0, normal(5, 4), normal(5, 4))),
    Case("Select", (normal(5) > 0, normal(5, 4), normal(5, 4))),
    Case("Select", (np.array(True), normal(5, 4), normal(5, 4))),
    Case("SelectV2", (normal(5, 1) > 0, normal(5, 4), normal(4))),
    Case("SelectV2", (normal(3) > 0, normal(2, 3), normal())),
    Case("SelectV2", (normal(6) > 0, normal(6) > 0, normal(6) > 1)),
    Case("SelectV2", (normal(6) > 0, ints(6), ints(6))),
    Case("ClipByValue", (normal(5, 4), np.array(-0.5), np.array(0.5))),
    Case("ClipByValue", (normal(5, 4), -np.abs(normal(5, 4)), np.abs(normal(5, 4)))),
]
