"""Ops that take, or fill in, a range of some dims."""

import numpy as np

from tests.conformance.executor import Case, Resource
from tests.conformance.moves import ints, moving, ramp

MASKS = {"begin_mask": 0, "end_mask": 0, "ellipsis_mask": 0, "new_axis_mask": 0, "shrink_axis_mask": 0}


def strided(shape: tuple[int, ...], key: object) -> list[Case]:
    """`ramp(shape)[key]` as a StridedSlice, its gradient and its update."""
    begin, end, strides, masks = [], [], [], dict(MASKS)
    for bit, item in enumerate(key if isinstance(key, tuple) else (key,)):
        if item is Ellipsis or item is None:
            masks["ellipsis_mask" if item is Ellipsis else "new_axis_mask"] |= 1 << bit
            begin, end, strides = [*begin, 0], [*end, 0], [*strides, 1]
        elif isinstance(item, slice):
            masks["begin_mask"] |= (item.start is None) << bit
            masks["end_mask"] |= (item.stop is None) << bit
            begin, end, strides = [*begin, item.start or 0], [*end, item.stop or 0], [*strides, item.step or 1]
        else:
            masks["shrink_axis_mask"] |= 1 << bit
            begin, end, strides = [*begin, item], [*end, item + 1], [*strides, 1]
    spec = [np.array(part, "int32") for part in (begin, end, strides)]
    whole = ramp(*shape)
    part = whole[key] + 1
    return [
        moving("StridedSlice", whole, *spec, known=(1, 2, 3), **masks),
        moving("StridedSliceGrad", np.array(shape, "int32"), *spec, part, known=(0, 1, 2, 3), **masks),
        moving("TensorStridedSliceUpdate", whole, *spec, part, known=(1, 2, 3), **masks),
        moving("ResourceStridedSliceAssign", Resource(whole), *spec, part, known=(1, 2, 3), **masks),
    ]


ROWS = ramp(5, 4, 3)
PADS = np.array([[0, 0], [1, 2], [0, 0]], "int32")

CASES: list[Case] = [
    moving("Slice", ROWS, ints(0, 1, 0), ints(5, 2, 3)),
    moving("Slice", ROWS, ints(0, 0, 1, dtype="int64"), ints(-1, -1, 2, dtype="int64")),
    *strided((5, 4, 3), (slice(None), slice(1, 3))),
    *strided((5, 4, 3), (slice(None), 1)),
    *strided((5, 4, 3), (Ellipsis, -1)),
    *strided((5, 4, 3), (Ellipsis, slice(0, 2))),
    *strided((5, 4), (slice(None), None, slice(None))),
    *strided((5, 4, 3), (slice(0, 5), slice(None, None, 2), slice(-3, 9))),
    *strided((5, 4, 3), (0, Ellipsis, None)),
    *strided((5, 4), (slice(1, None),)),
    # The end of the first dim is known only when running.
    moving(
        "StridedSlice",
        ROWS,
        ints(0, 2),
        ints(0, 3),
        ints(1, 1),
        known=(3,),
        begin_mask=1,
        end_mask=1,
        shrink_axis_mask=2,
    ),
    moving("Pad", ROWS, PADS),
    moving("PadV2", ROWS, PADS, np.array(0, "float32")),
    moving("PadV2", ROWS, PADS, np.array(9, "float32")),
    moving("MirrorPad", ROWS, PADS, mode="REFLECT"),
    moving("MirrorPadGrad", ramp(5, 7, 3), PADS, mode="SYMMETRIC"),
    moving("ReverseV2", ROWS, ints(1)),
    moving("ReverseV2", ROWS, ints(-1, 0)),
    moving("Reverse", ROWS, np.array([False, True, False])),
    moving("ReverseSequence", ROWS, ints(3, 4, 1, 2, 0), known=(9,), seq_dim=1),
    moving("ReverseSequence", ROWS, ints(2, 5, 1, dtype="int64"), known=(9,), seq_dim=0, batch_dim=2),
    moving("Roll", ROWS, ints(1, 2), ints(1, -1)),
    moving("SpaceToDepth", ramp(5, 6, 4, 3), block_size=2),
    moving("SpaceToDepth", ramp(3, 2, 6, 4), block_size=2, data_format="NHWC"),
    moving("DepthToSpace", ramp(5, 3, 2, 8), block_size=2),
    moving("SpaceToBatch", ramp(3, 4, 6, 5), np.zeros((2, 2), "int32"), block_size=2),
    moving("BatchToSpace", ramp(12, 2, 3, 5), np.zeros((2, 2), "int32"), block_size=2),
    moving("SpaceToBatchND", ramp(3, 4, 6, 5), ints(2, 3), np.zeros((2, 2), "int32")),
    moving("BatchToSpaceND", ramp(12, 2, 2, 5), ints(2, 3), np.zeros((2, 2), "int32")),
]
