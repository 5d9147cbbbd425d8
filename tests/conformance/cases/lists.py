"""Lists of tensors: what they hold is compared."""

import numpy as np

from tests.conformance.executor import Case, Listed

rng = np.random.default_rng(11)


def normal(*shape: int) -> np.ndarray:
    return np.asarray(rng.normal(size=shape))


def shape(*lengths: int) -> np.ndarray:
    return np.array(lengths, np.int32)


THREE, ONE = np.array(3, np.int32), np.array(1, np.int32)
OF_FLOATS = {"element_dtype": "float64"}
ROWS = Listed(normal(3, 5, 4))

CASES = [
    Case("TensorListReserve", (shape(5, 4), THREE), OF_FLOATS, elements=(5, 4)),
    Case("EmptyTensorList", (shape(5, 4), THREE), OF_FLOATS, elements=(5, 4)),
    Case("TensorListFromTensor", (normal(3, 5, 4), shape(-1, 4)), OF_FLOATS, elements=(5, 4)),
    Case("TensorListScatterV2", (normal(2, 5, 4), shape(2, 0), shape(-1, -1), THREE), OF_FLOATS, elements=(5, 4)),
    Case("TensorListSetItem", (ROWS, ONE, normal(5, 4)), OF_FLOATS),
    Case("TensorListPushBack", (ROWS, normal(5, 4)), OF_FLOATS),
    Case("TensorListGetItem", (ROWS, ONE, shape(5, 4)), OF_FLOATS),
    Case("TensorListPopBack", (ROWS, shape(5, 4)), OF_FLOATS),
    Case("TensorListStack", (ROWS, shape(5, 4)), OF_FLOATS | {"num_elements": 3}),
    Case("TensorListGather", (ROWS, shape(2, 0), shape(5, 4)), OF_FLOATS),
    Case("TensorListResize", (ROWS, ONE), {}),
    Case("TensorListLength", (ROWS,), {}),
    Case("OptionalFromValue", (normal(5, 4),), elements=(5, 4)),
    Case("OptionalNone", (), elements=(5, 4)),
    Case(
        "OptionalGetValue",
        (Listed(normal(5, 4), optional=True),),
        {"output_types": ("float64",), "output_shapes": ((5, 4),)},
    ),
]
