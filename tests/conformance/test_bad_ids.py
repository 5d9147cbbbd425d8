"""Where the rows that ids name are split, an id that names no row of any part is an error, as on one device."""

import numpy as np
import pytest
import tensorflow as tf

from tests.conformance.executor import AXES, Case, Resource, registry, run_signature
from tests.conformance.moves import ints, ramp
from whaleish.mesh import Mesh
from whaleish.sbp import B, S

TABLE, ROWS = ramp(5, 3), ramp(2, 3)
ZERO = np.array(0, "int32")


def cases(bad: int) -> list[Case]:
    ids = ints(1, bad)
    return [
        Case("GatherV2", (TABLE, ids, ZERO), {}, (2,)),
        Case("ResourceGather", (Resource(TABLE), ids), {"dtype": "float32"}),
        *(Case(f"ResourceScatter{kind}", (Resource(TABLE), ids, ROWS)) for kind in ("Add", "Max", "Mul")),
        Case("ResourceScatterNdAdd", (Resource(TABLE), ids[:, None], ROWS)),
        Case("TensorScatterAdd", (TABLE, ids[:, None], ROWS)),
    ]


@pytest.mark.parametrize("index", range(len(cases(0))), ids=[case.type for case in cases(0)])
@pytest.mark.parametrize("bad", [-1, 5])
def test_bad_id(index: int, bad: int) -> None:
    case, good = cases(bad)[index], cases(4)[index]
    object.__setattr__(case, "_reference", good.reference)
    op = case.view()
    signature = next(s for s in registry.signatures(op) if s.inputs == (S(0), *[B] * (len(op.inputs) - 1)))
    with pytest.raises(tf.errors.InvalidArgumentError):
        run_signature(case, [signature], Mesh(AXES[:1]))
