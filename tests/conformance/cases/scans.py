"""Cumulative ops: along whole dims, and along dims that fall into blocks."""

import numpy as np

from tests.conformance.executor import Case

rng = np.random.default_rng(7)


def normal(*shape: int) -> np.ndarray:
    return np.asarray(rng.normal(size=shape))


def dim(value: int) -> np.ndarray:
    return np.array(value, np.int32)


CASES: list[Case] = [
    *(
        Case(type, (normal(*shape), dim(along)), {"exclusive": exclusive, "reverse": reverse}, (1,))
        for type in ("Cumsum", "Cumprod", "CumulativeLogsumexp")
        for shape, along, exclusive, reverse in (
            ((5, 4, 2), 1, False, True),
            ((5, 4, 2), -3, True, False),
            ((3, 12), 1, False, False),
            ((8, 3), 0, True, True),
        )
    ),
    Case("Cumsum", (rng.integers(-9, 9, (9, 2)).astype(np.int64), dim(0)), {}, (1,)),
    Case("Cumsum", (normal(2, 6).astype("float16"), np.array(1, np.int64)), {}, (1,)),
    Case("Cumsum", (normal(6, 2) + 1j * normal(6, 2), dim(0)), {}, (1,)),
    Case("Cumprod", (rng.integers(1, 3, (6,)).astype(np.int32), dim(0)), {}, (1,)),
    Case("Cumsum", (normal(5, 4), dim(0))),
]
