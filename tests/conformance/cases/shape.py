"""Ops that give a tensor another shape."""

import numpy as np

from tests.conformance.executor import Case
from tests.conformance.moves import ints, moving, ramp

RESHAPES = [
    ((5, 3), (15,)),
    ((15,), (5, 3)),
    ((4, 6), (24,)),
    ((6, 4), (4, 6)),
    ((4, 6, 5), (24, 5)),
    ((24, 5), (4, 6, 5)),
    ((8, 1, 5), (8, 5)),
    ((8, 5), (8, 1, 1, 5)),
    ((1, 7, 3), (1, 21)),
    ((1, 7, 3), (7, 3)),
    ((7, 3), (1, 7, 3)),
    ((2, 3, 4, 5), (6, 20)),
    ((6, 35), (10, 21)),
    ((1,), ()),
    ((0, 4), (0, 2, 2)),
]

CASES: list[Case] = [
    *(moving("Reshape", ramp(*before), np.array(after, "int32")) for before, after in RESHAPES),
    moving("Reshape", ramp(4, 6, dtype="int64"), ints(-1, 3, dtype="int64")),
    moving("Reshape", ramp(4, 6, dtype="bool"), ints(-1)),
    moving("EnsureShape", ramp(5, 3), shape=(5, 3)),
    moving("ExpandDims", ramp(5, 3), ints(1)),
    moving("ExpandDims", ramp(5, 3), np.array(-1, "int32")),
    moving("Squeeze", ramp(5, 1, 3, 1)),
    moving("Squeeze", ramp(5, 3)),
    moving("Squeeze", ramp(1, 5, 1, 3), squeeze_dims=[-2]),
    moving("Squeeze", ramp(1, 2, 1), squeeze_dims=[]),
    moving("Transpose", ramp(2, 3, 5), ints(2, 0, 1)),
    moving("Transpose", ramp(4, 7, dtype="bool"), ints(1, 0, dtype="int64")),
    moving("ConjugateTranspose", ramp(2, 5, dtype="complex64"), ints(1, 0)),
    moving("BroadcastTo", ramp(5, 1), ints(2, 5, 3)),
    moving("BroadcastTo", ramp(3), ints(1, 6, 3, dtype="int64")),
    moving("BroadcastTo", ramp(), ints(5)),
    moving("Fill", ints(5, 3), np.array(7.0, "float32"), known=(0,)),
    moving("Fill", ints(4, dtype="int64"), np.array(True), known=(0,)),
    moving("Empty", ints(5, 3), known=(0,), dtype="float32", init=True),
    moving("Tile", ramp(5, 2, 1), ints(1, 3, 6)),
    moving("Tile", ramp(3), ints(4, dtype="int64")),
    moving("Bitcast", ramp(5, 3), type="int32"),
    moving("Bitcast", ramp(5, 3), type="int16"),
    moving("Bitcast", ramp(5, 4, dtype="int16"), type="int64"),
    Case("Range", (ints(3)[0], ints(17)[0], ints(2)[0]), {}, (0, 1, 2), exact=True),
    Case("Range", (ints(5)[0], ints(-6)[0], ints(-1)[0]), {}, (0, 1, 2), exact=True),
]
