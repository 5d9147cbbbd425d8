"""Sparse tensors: places [n, dims], values [n] and a shape. Any part of the values is a sparse tensor of that shape.

So what is linear in the values, and dense, is a sum over parts of them.
"""

from __future__ import annotations

from whaleish.rules.forms import numeric
from whaleish.rules.movement import partly, place
from whaleish.rules.rule import OpView, Signature, registry
from whaleish.sbp import B, P, S


@registry.register("SparseTensorDenseMatMul")
def sparse_product(op: OpView) -> list[Signature]:
    """places, values, shape, matrix -> matrix; linear in the values and in the matrix."""
    column = 0 if op.attrs.get("adjoint_b") else 1
    return [
        place(op, {0: S(0), 1: S(0)}, P),
        place(op, {3: S(column)}, S(1)),
        place(op, {1: P}, P),
        place(op, {3: P}, P),
    ]


@registry.register("SparseTensorDenseAdd")
def sparse_sum(op: OpView) -> list[Signature]:
    """places, values, shape, tensor -> tensor"""
    return [place(op, {0: S(0), 1: S(0), 3: P}, P), place(op, {1: P, 3: P}, P)]


@registry.register("SparseDenseCwiseAdd", "SparseDenseCwiseMul", "SparseDenseCwiseDiv")
def sparse_elementwise(op: OpView) -> list[Signature]:
    """places, values, shape, a tensor that broadcasts to it -> values"""
    found = [place(op, {0: S(0), 1: S(0)}, S(0))]
    if op.type == "SparseDenseCwiseAdd":
        return [*found, place(op, {1: P, 3: P}, P)]
    if op.type == "SparseDenseCwiseMul":
        found.append(place(op, {3: P}, P))
    return [*found, *partly(op, [1], [P])]


@registry.register("SparseToDense")
def to_dense(op: OpView) -> list[Signature]:
    """places (one each, or [n, dims]), shape, values (or one for all), and what is elsewhere: a sum where that is 0."""
    elsewhere = op.constants[3]
    if elsewhere is None or not numeric(op.inputs[2]) or elsewhere.any() or not op.inputs[0].rank:
        return []
    found = [place(op, {0: S(0), 2: S(0)} if op.inputs[2].rank else {0: S(0)}, P)]
    return found + partly(op, [2], [P])


@registry.register("SparseReduceSum")
def sparse_reduction(op: OpView) -> list[Signature]:
    """places, values, shape, dims -> a dense tensor"""
    return [place(op, {0: S(0), 1: S(0)}, P), place(op, {1: P}, P)]


@registry.register("SparseReshape")
def sparse_reshape(op: OpView) -> list[Signature]:
    """places, shape, new shape -> places, the new shape as numbers"""
    return [place(op, {0: S(0)}, S(0), B)]
