"""Writing rows, by place or by segment."""

import numpy as np

from tests.conformance.cases.gather import some
from tests.conformance.executor import Case
from tests.conformance.moves import ints, ramp

PLACES = np.array([[0, 6], [4, 2], [1, 1], [4, 3]], "int32")
ROWS = np.array([[3], [0], [4]], "int64")
SEGMENTS = np.array(7, "int32")

CASES: list[Case] = [
    Case("ScatterNd", (PLACES, ramp(4, 3) + 1, ints(5, 7, 3)), {}, (2,)),
    Case("ScatterNd", (ROWS, ramp(3, 7) + 1, ints(5, 7, dtype="int64")), {}, (2,)),
    *(
        Case(f"TensorScatter{kind}", inputs)
        for kind in ("Add", "Sub", "Update", "Max", "Min")
        for inputs in ((ramp(5, 7, 3), PLACES, 50 - ramp(4, 3)), (ramp(5, 7), ROWS, 50 - ramp(3, 7)))
    ),
    Case("ScatterNdNonAliasingAdd", (ramp(5, 7, 3), PLACES, ramp(4, 3))),
    *(Case(f"Inplace{kind}", (ramp(5, 7), ints(3, 0, 4), ramp(3, 7) + 40)) for kind in ("Add", "Sub", "Update")),
    Case("TensorScatterSub", (ramp(5, 7), PLACES, ramp(4) + 1)),
    *(
        Case(f"UnsortedSegment{kind}", inputs, {}, (2,))
        for kind in ("Sum", "Max", "Min", "Prod")
        for inputs in (
            (ramp(5, 3) + 1, ints(6, 0, -1, 0, 3), SEGMENTS),
            (ramp(5, 2, 3) + 1, some((5, 2), 7, "int64"), np.array(7, "int64")),
            (ramp(5, dtype="int32") + 1, some((5,), 7), SEGMENTS),
        )
    ),
    *(Case(f"Segment{kind}", (ramp(5, 3), ints(0, 0, 1, 1, 3))) for kind in ("Sum", "Mean", "Prod", "Max", "Min")),
    *(
        Case(f"SparseSegment{kind}", (ramp(7, 3), ints(6, 0, 2, 2), ints(0, 0, 1, 2)))
        for kind in ("Sum", "Mean", "SqrtN")
    ),
    *(
        Case(f"SparseSegment{kind}WithNumSegments", (ramp(7, 3), ints(6, 0, 2, 2), ints(0, 0, 1, 3), ints(5)[0]))
        for kind in ("Sum", "Mean", "SqrtN")
    ),
    *(
        Case(f"SparseSegment{kind}Grad", (ramp(3, 4), ints(6, 0, 2, 2), ints(0, 0, 1, 2), ints(7)[0]))
        for kind in ("Sum", "Mean", "SqrtN")
    ),
]
