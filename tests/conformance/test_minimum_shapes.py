"""Signatures that the ops that move, look up, draw and compare logits must offer, not merely those they declare."""

from collections.abc import Mapping

import numpy as np
import pytest
from tensorflow.python.framework import op_def_registry

import whaleish.rules
from tests.conformance.cases.random import counted
from tests.conformance.executor import Case, Resource, registry
from tests.conformance.moves import ints, ramp
from whaleish.rules.whole import REASONS

IDS = ints(3, 0, 6, 2, 2)
SEGMENTS = np.array(7, "int32")
ROWS = {"begin_mask": 1, "end_mask": 1}

MINIMUM: Mapping[str, tuple[Case, str]] = {
    "reshape keeps the outermost dim of a group": (
        Case("Reshape", (ramp(8, 2, 3), ints(8, 6)), {}, (1,)),
        "S(0), B -> S(0); S(1), B -> S(1:3); P, B -> P; Pmax, B -> Pmax",
    ),
    "reshape scales units": (
        Case("Reshape", (ramp(5, 3), ints(15)), {}, (1,)),
        "S(0), B -> S(0:3)",
    ),
    "reshape scales units back": (Case("Reshape", (ramp(15), ints(5, 3)), {}, (1,)), "S(0:3), B -> S(0)"),
    "reshape of a batch of one": (Case("Reshape", (ramp(1, 7, 3), ints(7, 3)), {}, (1,)), "S(0), B -> S(0:7)"),
    "transpose": (
        Case("Transpose", (ramp(2, 3, 5), ints(2, 0, 1)), {}, (1,)),
        "S(2), B -> S(0); S(0), B -> S(1); S(1), B -> S(2); P, B -> P",
    ),
    "expand": (Case("ExpandDims", (ramp(5, 3), ints(1)), {}, (1,)), "S(0), B -> S(0); S(1), B -> S(2); P, B -> P"),
    "squeeze": (Case("Squeeze", (ramp(5, 1, 3),)), "S(0) -> S(0); S(2) -> S(1); P -> P"),
    "gradient of a mean": (
        Case("Tile", (ramp(1, 1, 1, 3), ints(8, 4, 4, 1)), {}, (1,)),
        "B, B -> S(0); B, B -> S(2); S(3), B -> S(3); P, B -> P",
    ),
    "broadcast": (Case("BroadcastTo", (ramp(3), ints(5, 3)), {}, (1,)), "B, B -> S(0); S(0), B -> S(1); P, B -> P"),
    "fill": (Case("Fill", (ints(5, 3), np.array(1.0)), {}, (0,)), "B, B -> S(0); B, B -> S(1); B, P -> P"),
    "concat": (
        Case("ConcatV2", (ramp(5, 2), ramp(5, 4), np.array(1, "int32")), {}, (2,)),
        "S(0), S(0), B -> S(0); P, P, B -> P",
    ),
    "split": (
        Case("Split", (np.array(1, "int32"), ramp(5, 6)), {"num_split": 2}, (0,)),
        "B, S(0) -> S(0), S(0); B, P -> P, P",
    ),
    "pack": (Case("Pack", (ramp(5), ramp(5)), {"axis": 0}), "S(0), S(0) -> S(1); P, P -> P"),
    "unpack": (Case("Unpack", (ramp(2, 5),), {"num": 2}), "S(1) -> S(0), S(0); P -> P, P"),
    "slice": (Case("Slice", (ramp(5, 4), ints(0, 1), ints(5, 2)), {}, (1, 2)), "S(0), B, B -> S(0); P, B, B -> P"),
    "strided slice": (
        Case("StridedSlice", (ramp(5, 4), ints(0, 1), ints(0, 3), ints(1, 1)), ROWS, (1, 2, 3)),
        "S(0), B, B, B -> S(0); P, B, B, B -> P",
    ),
    "gradient of a strided slice": (
        Case("StridedSliceGrad", (ints(5, 4), ints(0, 1), ints(0, 3), ints(1, 1), ramp(5, 2)), ROWS, (0, 1, 2, 3)),
        "B, B, B, B, S(0) -> S(0); B, B, B, B, P -> P",
    ),
    "zero pad": (Case("Pad", (ramp(5, 4), np.array([[0, 0], [1, 1]])), {}, (1,)), "S(0), B -> S(0); P, B -> P"),
    "reverse": (Case("ReverseV2", (ramp(5, 4), ints(1)), {}, (1,)), "S(0), B -> S(0); P, B -> P"),
    "embedding": (
        Case("GatherV2", (ramp(7, 3), IDS, np.array(0, "int32")), {}, (2,)),
        "B, S(0), B -> S(0); S(0), B, B -> P; S(1), B, B -> S(1)",
    ),
    "embedding in a variable": (
        Case("ResourceGather", (Resource(ramp(7, 3)), IDS), {"dtype": "float32"}),
        "B, S(0) -> S(0); S(0), B -> P; S(1), B -> S(1)",
    ),
    "gradient of an embedding": (
        Case("UnsortedSegmentSum", (ramp(5, 3), IDS, SEGMENTS), {}, (2,)),
        "S(0), S(0), B -> P; S(1), B, B -> S(1); B, B, B -> S(0); P, B, B -> P",
    ),
    "one-hot": (
        Case("OneHot", (IDS, SEGMENTS, np.array(1.0), np.array(0.0)), {}, (1,)),
        "S(0), B, B, B -> S(0); B, B, B, B -> S(1)",
    ),
    "top-k": (Case("TopKV2", (ramp(5, 7), np.array(2, "int32")), {}, (1,)), "S(0), B -> S(0), S(0)"),
    "random": (counted("StatelessRandomUniformV2", (5, 3), "float32"), "B, B, B, B -> S(0)"),
    "softmax": (Case("Softmax", (ramp(5, 2, 7),)), "S(0) -> S(0); S(1) -> S(1); S(2) -> S(2)"),
    "sparse cross entropy": (
        Case("SparseSoftmaxCrossEntropyWithLogits", (ramp(5, 7), IDS)),
        "S(0), S(0) -> S(0), S(0); S(1), B -> B, S(1)",
    ),
    "cross entropy": (
        Case("SoftmaxCrossEntropyWithLogits", (ramp(5, 7), ramp(5, 7))),
        "S(0), S(0) -> S(0), S(0); S(1), S(1) -> B, S(1)",
    ),
    "scan along a split dim, in blocks": (
        Case("Cumsum", (ramp(12, 2), np.array(0, "int32")), {}, (1,)),
        "S(1), B -> S(1); S(0:3), B -> S(0:3); P, B -> P",
    ),
    "product of blocks": (Case("Prod", (ramp(12, 2), ints(0)), {}, (1,)), "S(1), B -> S(0); S(0:3), B -> B"),
    "class with the largest logit": (
        Case("ArgMax", (ramp(5, 7), np.array(1, "int32")), {}, (1,)),
        "S(0), B -> S(0); S(1), B -> B",
    ),
    "target among the top": (
        Case("InTopKV2", (ramp(5, 7), IDS, np.array(2, "int32"))),
        "S(0), S(0), B -> S(0); S(1), B, B -> B",
    ),
    "rows of a variable": (
        Case("ResourceScatterMax", (Resource(ramp(7, 3)), IDS, ramp(5, 3))),
        "S(0), B, B -> ; S(1), B, S(1) -> ",
    ),
    "histogram": (Case("DenseBincount", (IDS, SEGMENTS, np.zeros(0, "float32"))), "S(0), B, B -> P"),
    "sorted rows": (Case("LowerBound", (ramp(5, 7), ramp(5, 3))), "S(0), S(0) -> S(0); B, S(1) -> S(1); S(1), B -> P"),
    "right-hand sides": (Case("MatrixSolve", (np.eye(3), ramp(3, 4, dtype="float64"))), "B, S(1) -> S(1); B, P -> P"),
    "sparse product": (
        Case(
            "SparseTensorDenseMatMul",
            (ints(0, 1, 2, 2, dtype="int64").reshape(2, 2), ramp(2), ints(3, 4, dtype="int64"), ramp(4, 5)),
        ),
        "S(0), S(0), B, B -> P; B, B, B, S(1) -> S(1); B, B, B, P -> P",
    ),
    "strings": (Case("StringLength", (np.array(["a", "bc"], object),)), "S(0) -> S(0)"),
    "resize": (
        Case("ResizeBilinear", (ramp(5, 2, 2, 3), ints(4, 4)), {}, (1,)),
        "S(0), B -> S(0); S(3), B -> S(3); P, B -> P",
    ),
}


@pytest.mark.parametrize("name", MINIMUM)
def test_minimum(name: str) -> None:
    case, wanted = MINIMUM[name]
    offered = {str(signature) for signature in registry.signatures(case.view())}
    missing = [signature for signature in wanted.split("; ") if signature not in offered]
    assert not missing, f"{case.type} does not offer {missing}; it offers {sorted(offered)}"


FALSE: list[tuple[Case, str]] = [
    (Case("PadV2", (ramp(5, 4), np.array([[0, 0], [1, 1]]), np.array(9.0, "float32")), {}, (1, 2)), "P, B, B -> P"),
    (Case("Bitcast", (ramp(5, 4),), {"type": "int32"}), "P -> P"),
    (counted("StatelessRandomUniformV2", (5, 3), "float32"), "B, B, B, B -> S(1)"),
    (Case("UnsortedSegmentProd", (ramp(5, 3), IDS, SEGMENTS), {}, (2,)), "S(0), S(0), B -> P"),
    (Case("Reshape", (ramp(4, 6), ints(24)), {}, (1,)), "S(1), B -> S(0)"),
]


@pytest.mark.parametrize(("case", "signature"), FALSE, ids=lambda value: getattr(value, "type", None))
def test_false_signatures_are_not_offered(case: Case, signature: str) -> None:
    assert signature not in {str(offer) for offer in registry.signatures(case.view())}


def test_whole_ops_exist_and_have_no_rule() -> None:
    assert not [type for type in REASONS if op_def_registry.get(type) is None]
    assert not set(REASONS) & set(whaleish.rules.registry.rules)
