"""Fused normalisation and its gradient, with statistics that are given or taken."""

import numpy as np

from tests.conformance.cases.pooling import single
from tests.conformance.executor import Case


def normalisations(version: str, training: bool) -> list[Case]:
    """The op and its gradient."""
    attrs = {"is_training": training, "epsilon": 0.01}
    images, scale, offset, mean = single(6, 3, 2, 4), single(4), single(4), single(4)
    variance = np.abs(single(4)) + 1
    spare = (single(0),) if version == "V3" else ()
    return [
        Case("FusedBatchNorm" + version, (images, scale, offset, *statistics(training, mean, variance)), attrs),
        Case("FusedBatchNormGrad" + version, (single(6, 3, 2, 4), images, scale, mean, variance, *spare), attrs),
    ]


def statistics(training: bool, mean: np.ndarray, variance: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Not given when the op is to take them itself."""
    return (single(0), single(0)) if training else (mean, variance)


CASES: list[Case] = [
    case for version in ("", "V2", "V3") for training in (True, False) for case in normalisations(version, training)
]
CASES += [
    Case(
        "FusedBatchNormV3",
        (single(2, 4, 3, 3), single(4), single(4), single(0), single(0)),
        {"is_training": True, "data_format": "NCHW"},
    ),
    Case(
        "FusedBatchNormV3",
        (single(5, 3, 4).reshape(5, 1, 3, 4).astype("float16"), *(single(4) for _ in range(2)), single(0), single(0)),
    ),
    Case(
        "FusedBatchNormV3",
        (single(4, 2, 2, 3), single(3), single(3), single(3), np.abs(single(3))),
        {"exponential_avg_factor": 0.9},
    ),
]
