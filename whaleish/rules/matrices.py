"""Ops on matrices in the last two dims, and transforms along the last dims: the dims before them are a batch."""

from __future__ import annotations

from collections.abc import Sequence

from whaleish.rules.forms import names
from whaleish.rules.movement import LINEAR, carried, empty_as_zeros, partly, place
from whaleish.rules.rule import OpView, Signature, registry
from whaleish.sbp import S, Sbp


def _batch(op: OpView, inputs: Sequence[int], own: int, partial: Sequence[Sbp] = ()) -> list[Signature]:
    """All but the last `own` dims of the first of the inputs, which all have the same leading dims."""
    dims = range(op.inputs[inputs[0]].rank - own)
    return [place(op, dict.fromkeys(inputs, S(dim)), S(dim)) for dim in dims] + partly(op, inputs, partial)


@registry.register(*names("Cholesky MatrixInverse MatrixDeterminant LogMatrixDeterminant Qr Svd SelfAdjointEigV2"))
def decompositions(op: OpView) -> list[Signature]:
    return _batch(op, [0], own=2)


@registry.register("CholeskyGrad", "MatrixSolve", "MatrixSolveLs")
def solve(op: OpView) -> list[Signature]:
    return _batch(op, [0, 1], own=2)


@registry.register("MatrixTriangularSolve")
def triangular_solve(op: OpView) -> list[Signature]:
    """Batches of matrix and right-hand sides broadcast: only those that are equal are split."""
    before, after = op.inputs[0].shape, op.inputs[1].shape
    equal = before is not None and after is not None and before[:-2] == after[:-2]
    return _batch(op, [0, 1], own=2) if equal else []


@registry.register("MatrixBandPart")
def band_part(op: OpView) -> list[Signature]:
    return _batch(op, [0], own=2, partial=LINEAR)


@registry.register("MatrixDiag")
def diagonal_matrix(op: OpView) -> list[Signature]:
    return _batch(op, [0], own=1, partial=LINEAR)


@registry.register("MatrixDiagPart")
def diagonal_part(op: OpView) -> list[Signature]:
    return _batch(op, [0], own=2, partial=LINEAR)


@registry.register("MatrixDiagPartV2", "MatrixDiagPartV3")
def diagonals_part(op: OpView) -> list[Signature]:
    """Input, which diagonals, padding."""
    return _batch(op, [0], own=2, partial=_if_zero(op, 2))


@registry.register("MatrixDiagV2", "MatrixDiagV3")
def diagonals_matrix(op: OpView) -> list[Signature]:
    """Diagonals (one, or several in a dim of their own), which ones, rows, columns, padding."""
    return carried(op, ((dim, dim) for dim in range(op.outputs[0].rank - 2)), _if_zero(op, 4))


def _if_zero(op: OpView, padding: int) -> Sequence[Sbp]:
    value = op.constants[padding]
    return LINEAR if value is not None and not value.any() else ()


@registry.register("MatrixSetDiag", "MatrixSetDiagV2", "MatrixSetDiagV3")
def set_diagonals(op: OpView) -> list[Signature]:
    return _batch(op, [0, 1], own=2, partial=LINEAR)


_TRANSFORMED = {"FFT": 1, "IFFT": 1, "RFFT": 1, "IRFFT": 1, "FFT2D": 2, "IFFT2D": 2, "RFFT2D": 2, "IRFFT2D": 2}
"""Fourier transforms and the number of last dims that they mix."""


@registry.register(*_TRANSFORMED, lower=empty_as_zeros())
def fourier(op: OpView) -> list[Signature]:
    """Linear, also where only the real part comes out."""
    return _batch(op, [0], own=_TRANSFORMED[op.type], partial=LINEAR)


@registry.register("Cross")
def cross_product(op: OpView) -> list[Signature]:
    return _batch(op, [0, 1], own=1)
