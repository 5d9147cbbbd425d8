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


@registry.register(
    *names("""
        Cholesky Eig LogMatrixDeterminant Lu MatrixDeterminant MatrixInverse MatrixLogarithm
        MatrixSquareRoot Qr SelfAdjointEigV2 Svd
    """)
)
def decompositions(op: OpView) -> list[Signature]:
    return _batch(op, [0], own=2)


@registry.register("CholeskyGrad")
def cholesky_gradient(op: OpView) -> list[Signature]:
    return _batch(op, [0, 1], own=2)


@registry.register(
    *names("BandedTriangularSolve MatrixSolve MatrixSolveLs MatrixTriangularSolve TridiagonalSolve"),
    lower=empty_as_zeros(),
)
def solve(op: OpView) -> list[Signature]:
    """Matrices [.. M N] (or their diagonals) and right-hand sides [.. M K], each of which is solved for by itself.

    Batches of some ops broadcast: only those that are equal are split. Rounding aside, solutions are linear in the
    right-hand sides.
    """
    before, after = op.inputs[0].shape, op.inputs[1].shape
    equal = before is not None and after is not None and before[:-2] == after[:-2]
    columns = [place(op, {1: S(op.inputs[1].rank - 1)}, S(op.outputs[0].rank - 1))]
    return (_batch(op, [0, 1], own=2) if equal else []) + columns + partly(op, [1], LINEAR)


@registry.register("TridiagonalMatMul")
def tridiagonal_product(op: OpView) -> list[Signature]:
    """Three diagonals [.. 1 M] and a matrix [.. M K], in which it is linear."""
    rank = op.inputs[3].rank
    found = [place(op, dict.fromkeys(range(4), S(dim)), S(dim)) for dim in range(rank - 2)]
    return [*found, place(op, {3: S(rank - 1)}, S(rank - 1)), *partly(op, [3], LINEAR)]


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


_TRANSFORMED = {
    f"{inverse}{real}FFT{dims}": int(dims[:1] or 1)
    for inverse in ("", "I")
    for real in ("", "R")
    for dims in ("", "2D", "3D")
}
"""Fourier transforms and the number of last dims that they mix."""


@registry.register(*_TRANSFORMED, lower=empty_as_zeros())
def fourier(op: OpView) -> list[Signature]:
    """Linear, also where only the real part comes out."""
    return _batch(op, [0], own=_TRANSFORMED[op.type], partial=LINEAR)


@registry.register("AudioSpectrogram", lower=empty_as_zeros())
def spectrogram(op: OpView) -> list[Signature]:
    """Samples [time, channels] -> [channels, windows, frequencies]"""
    return [place(op, {0: S(1)}, S(0))]


@registry.register("Mfcc", lower=empty_as_zeros())
def cepstrum(op: OpView) -> list[Signature]:
    """Spectrogram [channels, windows, frequencies], a rate -> coefficients of each window by itself."""
    return carried(op, [(0, 0), (1, 1)])


@registry.register("Cross")
def cross_product(op: OpView) -> list[Signature]:
    return _batch(op, [0, 1], own=1)


@registry.register("Diag", "DiagPart")
def diagonal_of_all(op: OpView) -> list[Signature]:
    """A tensor of any rank as the diagonal of one of twice that rank: no split of either is one of the other."""
    return partly(op, [0], LINEAR)
