"""Matrix products, Einsum and bias: every transpose flag, broadcast batch dims, uneven and small dims."""

import itertools

import numpy as np

from tests.conformance.executor import Case

rng = np.random.default_rng(2)


def normal(*shape: int) -> np.ndarray:
    return np.asarray(rng.normal(size=shape))


def flipped(flip: bool, *shape: int) -> np.ndarray:
    return normal(*shape[:-2], shape[-1], shape[-2]) if flip else normal(*shape)


CASES = [
    Case("MatMul", (flipped(a, m, 4), flipped(b, 4, 3)), {"transpose_a": a, "transpose_b": b})
    for m, (a, b) in itertools.product((6, 1), itertools.product((False, True), repeat=2))
]
CASES += [
    Case("MatMul", (rng.integers(-5, 5, (5, 4)).astype(np.int32), rng.integers(-5, 5, (4, 3)).astype(np.int32))),
    Case("SparseMatMul", (normal(5, 4).astype(np.float32), normal(4, 2).astype(np.float32))),
    Case("BatchMatMul", (normal(2, 5, 3), normal(2, 3, 4))),
    Case("BatchMatMulV3", (normal(2, 5, 3), normal(2, 3, 4)), {"Tout": "float64"}),
    Case(
        "BatchMatMulV3",
        (rng.integers(-99, 99, (5, 4)).astype(np.int8), rng.integers(-99, 99, (4, 2)).astype(np.int8)),
        {"Tout": "int32"},
    ),
]
CASES += [
    Case("BatchMatMulV2", (flipped(x, *left, 5, 3), flipped(y, *right, 3, 4)), {"adj_x": x, "adj_y": y})
    for x, y in itertools.product((False, True), repeat=2)
    for left, right in (((6, 2), (6, 2)), ((5, 1), (2,)), ((1,), (3,)))
]
CASES += [
    Case("Einsum", tuple(normal(*shape) for shape in shapes), {"equation": equation})
    for equation, shapes in (
        ("ij,jk->ik", ((6, 3), (3, 4))),
        ("abc,cde->abde", ((2, 5, 4), (4, 3, 2))),
        ("aecd,abcd->acbe", ((2, 5, 3, 4), (2, 6, 3, 4))),
        ("abcd,cde->abe", ((2, 5, 3, 4), (3, 4, 2))),
        ("...ij,...jk->...ik", ((6, 2, 3, 4), (2, 4, 5))),
        ("...x,xy->...y", ((5, 2, 4), (4, 3))),
        ("b...i,b...->...bi", ((5, 2, 3), (5, 2))),
        ("...ij,...jk->...ik", ((5, 1, 3, 2), (4, 2, 3))),
        ("ij->ji", ((5, 4),)),
        ("ijk->j", ((5, 4, 3),)),
        ("ijk,k->i", ((5, 4, 3), (3,))),
        ("ii->i", ((4, 4),)),
        ("iij,jk->ik", ((4, 4, 3), (3, 5))),
        ("i,j->ij", ((5,), (4,))),
        ("i,i->", ((6,), (6,))),
    )
]
CASES += [
    Case("BiasAdd", (normal(5, 3, 4), normal(4))),
    Case("BiasAdd", (normal(6, 2), normal(2))),
    Case("BiasAdd", (normal(2, 5, 3, 4), normal(5)), {"data_format": "NCHW"}),
    Case("BiasAdd", (normal(5, 4, 3), normal(4)), {"data_format": "NCHW"}),
    Case("BiasAddV1", (normal(6, 2, 4), normal(4))),
    Case("BiasAddGrad", (normal(5, 3, 4),)),
    Case("BiasAddGrad", (normal(6, 2),)),
    Case("BiasAddGrad", (normal(2, 5, 3, 4),), {"data_format": "NCHW"}),
]
