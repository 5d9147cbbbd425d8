"""Look-ups."""

import numpy as np

from tests.conformance.executor import Case, Resource
from tests.conformance.moves import ints, ramp


def some(shape: tuple[int, ...], limit: int, dtype: str = "int32") -> np.ndarray:
    """Ids below a limit, some twice."""
    return np.random.default_rng(sum(shape) + limit).integers(0, limit, shape).astype(dtype)


def gather(table: np.ndarray, ids: np.ndarray, axis: int, **attrs: object) -> Case:
    return Case("GatherV2", (table, ids, np.array(axis, "int32")), attrs, (2,))


FLAGS = (np.array(3.0, "float32"), np.array(-1.0, "float32"))

CASES: list[Case] = [
    gather(ramp(7, 3), some((5,), 7), 0),
    gather(ramp(7, 3), some((5, 2), 7, "int64"), 0),
    gather(ramp(2, 7, 3), some((5,), 7), 1),
    gather(ramp(3, 7), some((4,), 7), -1),
    gather(ramp(7, dtype="bool"), some((5,), 7), 0),
    gather(ramp(7, 2, dtype="int32"), np.array(3, "int32"), 0),
    gather(ramp(5, 7, 3), some((5, 2), 7), 1, batch_dims=1),
    gather(ramp(5, 7), some((5,), 7), 1, batch_dims=1),
    gather(ramp(5, 2, 7, 3), some((5, 4), 7), 2, batch_dims=1),
    Case("ResourceGather", (Resource(ramp(7, 3)), some((5, 2), 7)), {"dtype": "float32"}),
    Case("ResourceGather", (Resource(ramp(5, 7)), some((5, 2), 7)), {"dtype": "float32", "batch_dims": 1}),
    Case("GatherNd", (ramp(5, 7, 3), np.stack([some((4,), 5), some((4,), 7)], -1))),
    Case("GatherNd", (ramp(5, 7), some((2, 3, 1), 5, "int64"))),
    Case("GatherNd", (ramp(5, 7), np.stack([some((4,), 5), some((4,), 7)], -1))),
    Case("ResourceGatherNd", (Resource(ramp(5, 7)), some((3, 1), 5)), {"dtype": "float32"}),
    Case("OneHot", (ints(0, 6, 3, -1, 7), np.array(7, "int32"), *FLAGS), {}, (1,)),
    Case("OneHot", (some((3, 2), 5, "int64"), np.array(5, "int32"), *FLAGS), {"axis": 1}, (1,)),
    Case("OneHot", (some((4,), 200, "uint8"), np.array(200, "int32"), *FLAGS), {"axis": 0}, (1,)),
    Case("Gather", (ramp(7, 3), some((5, 2), 7))),
    Case("UnravelIndex", (some((5,), 12), ints(3, 4))),
]
