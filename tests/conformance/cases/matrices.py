"""Ops on matrices in the last two dims."""

import numpy as np

from tests.conformance.executor import Case
from tests.conformance.moves import ramp

RNG = np.random.default_rng(4)
SQUARES = (RNG.normal(size=(5, 3, 3)) + 4 * np.eye(3)).astype("float64")
POSITIVE = SQUARES @ SQUARES.transpose(0, 2, 1)
LOWER = np.tril(SQUARES)
BAND = np.stack([np.diagonal(SQUARES, axis1=1, axis2=2), RNG.normal(size=(5, 3))], 1)
DIAGONALS = RNG.uniform(1, 2, (5, 3, 3)) + np.array([[0], [4], [0]])
SIDES = RNG.normal(size=(5, 3, 2))
ZERO, ONE = np.array(0, "int32"), np.array(1, "int32")
AUTO = np.array(-1, "int32")
NOTHING, SOMETHING = np.array(0, "float32"), np.array(7, "float32")
WAVES = RNG.normal(size=(5, 4, 8)) + 1j * RNG.normal(size=(5, 4, 8))
CUBES = RNG.normal(size=(3, 4, 3, 8)) + 1j * RNG.normal(size=(3, 4, 3, 8))

CASES: list[Case] = [
    Case("Cholesky", (POSITIVE,)),
    Case("CholeskyGrad", (LOWER, SQUARES)),
    Case("MatrixInverse", (SQUARES,)),
    Case("MatrixDeterminant", (SQUARES,)),
    Case("LogMatrixDeterminant", (SQUARES,)),
    Case("Eig", (POSITIVE,), {"Tout": "complex128"}),
    Case("Lu", (SQUARES,)),
    *(Case(f"Matrix{kind}", (POSITIVE.astype("complex128"),)) for kind in ("Logarithm", "SquareRoot")),
    Case("Qr", (SQUARES,)),
    Case("Svd", (SQUARES,)),
    Case("SelfAdjointEigV2", (POSITIVE,)),
    Case("MatrixSolve", (SQUARES, SIDES)),
    Case("MatrixSolveLs", (SQUARES, SIDES, np.array(0.0)), {}, (2,)),
    Case("MatrixTriangularSolve", (LOWER, SIDES)),
    Case("MatrixTriangularSolve", (LOWER, SIDES[0])),
    Case("BandedTriangularSolve", (BAND, SIDES)),
    Case("TridiagonalSolve", (DIAGONALS, SIDES)),
    Case("TridiagonalMatMul", (*(RNG.normal(size=(5, 1, 4)) for _ in range(3)), RNG.normal(size=(5, 4, 3)))),
    Case("Diag", (ramp(3, 2),)),
    Case("DiagPart", (ramp(3, 2, 3, 2),)),
    Case("MatrixBandPart", (ramp(5, 3, 4), np.array(-1, "int64"), np.array(0, "int64")), {}, (1, 2)),
    Case("MatrixDiag", (ramp(5, 3),)),
    Case("MatrixDiagPart", (ramp(5, 3, 4),)),
    Case("MatrixDiagV2", (ramp(5, 3), ONE, AUTO, AUTO, NOTHING), {}, (1, 2, 3, 4)),
    Case("MatrixDiagV3", (ramp(5, 3), ZERO, AUTO, AUTO, NOTHING), {}, (1, 2, 3, 4)),
    Case("MatrixDiagV3", (ramp(5, 2, 3), np.array([0, 1], "int32"), AUTO, AUTO, SOMETHING), {}, (1, 2, 3, 4)),
    Case("MatrixDiagPartV2", (ramp(5, 3, 4), ONE, NOTHING), {}, (1, 2)),
    Case("MatrixDiagPartV3", (ramp(5, 3, 4), np.array([-1, 0], "int32"), SOMETHING), {}, (1, 2)),
    Case("MatrixSetDiag", (ramp(5, 3, 4), -ramp(5, 3))),
    Case("MatrixSetDiagV2", (ramp(5, 3, 4), -ramp(5, 3), ZERO), {}, (2,)),
    Case("MatrixSetDiagV3", (ramp(5, 3, 4), -ramp(5, 2, 3), np.array([-1, 0], "int32")), {}, (2,)),
    *(Case(kind, (WAVES,)) for kind in ("FFT", "IFFT", "FFT2D", "IFFT2D")),
    *(
        Case(kind, (WAVES.real.astype("float32"), np.array(shape, "int32")), {}, (1,))
        for kind, shape in (("RFFT", [8]), ("RFFT2D", [4, 8]))
    ),
    *(
        Case(kind, (WAVES.astype("complex64"), np.array(shape, "int32")), {}, (1,))
        for kind, shape in (("IRFFT", [8]), ("IRFFT2D", [4, 8]))
    ),
    *(Case(kind, (CUBES,)) for kind in ("FFT3D", "IFFT3D")),
    Case("RFFT3D", (CUBES.real.astype("float32"), np.array([4, 3, 8], "int32")), {}, (1,)),
    Case("IRFFT3D", (CUBES.astype("complex64"), np.array([4, 3, 8], "int32")), {}, (1,)),
    Case("AudioSpectrogram", (RNG.normal(size=(20, 3)).astype("float32"),), {"window_size": 8, "stride": 4}),
    Case("Mfcc", (RNG.uniform(1, 2, (3, 5, 33)).astype("float32"), np.array(16000, "int32"))),
    Case("Cross", (ramp(5, 3), 1 - ramp(5, 3))),
]
