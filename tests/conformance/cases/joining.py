"""Ops that join tensors along a dim or take one apart."""

import numpy as np

from tests.conformance.executor import Case
from tests.conformance.moves import ints, moving, ramp

ONE = np.array(1, "int32")

CASES: list[Case] = [
    moving("ConcatV2", ramp(5, 2, 3), ramp(5, 4, 3), ONE, known=(2,)),
    moving("ConcatV2", ramp(5, 2), ramp(5, 1), ramp(5, 3), np.array(-1, "int64"), known=(3,)),
    moving("ConcatV2", ramp(2, 5, dtype="bool"), ramp(1, 5, dtype="bool"), np.array(0, "int32"), known=(2,)),
    moving("Concat", ONE, ramp(5, 2, 3), ramp(5, 4, 3), known=(0,)),
    moving("DynamicStitch", ints(3, 0), ints(1, 2, 4), ramp(2, 5, 3), ramp(3, 5, 3) + 50, known=(9,)),
    moving("ParallelDynamicStitch", ints(0), ints(2, 1).reshape(1, 2), ramp(1, 5), ramp(1, 2, 5) + 9, known=(9,)),
    moving("Split", ONE, ramp(5, 6, 2), known=(0,), num_split=3),
    moving("SplitV", ramp(5, 6), ints(1, 2, 3), ONE, num_split=3),
    moving("Pack", ramp(5, 3), ramp(5, 3) + 1, known=(9,), axis=1),
    moving("Pack", ramp(5), ramp(5), known=(9,), axis=-1),
    moving("Pack", ramp(), ramp(), known=(9,)),
    moving("Unpack", ramp(5, 2, 3), axis=1, num=2),
    moving("Unpack", ramp(5, 2), axis=-1, num=2),
]
