"""The signatures that the algebra promises for each family, written out: rules may offer more, never less.

Written by hand from the table of the design, not from the rules. No TensorFlow: a rule needs shapes only.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import whaleish.rules  # noqa: F401 (fills the registry)
from whaleish.rules.rule import OpView, Signature, TensorSpec, registry
from whaleish.sbp import parse_sbp

F = "float32"


def spec(*shape: int, dtype: str = F) -> TensorSpec:
    return TensorSpec(shape, dtype)


def op(type: str, inputs: list[TensorSpec | list[int]], outputs: list[TensorSpec], **attrs: object) -> OpView:
    """Lists among the inputs are constants."""
    constants = tuple(np.array(i, np.int32) if isinstance(i, list) else None for i in inputs)
    specs = tuple(spec(len(i), dtype="int32") if isinstance(i, list) else i for i in inputs)
    return OpView(type, attrs, specs, tuple(outputs), constants)


def signature(text: str) -> Signature:
    """`S(0),B -> S(0)`; an op without outputs ends in the arrow."""
    sides = [tuple(parse_sbp(part) for part in side.split(",") if part.strip()) for side in text.split("->")]
    return Signature(sides[0], sides[1])


def matmuls() -> list[tuple[OpView, str]]:
    """[6, 4] times [4, 8] for each pair of transpose flags, alone and in a batch."""
    found = []
    for a, b in itertools.product((0, 1), repeat=2):
        left, right = ((4, 6) if a else (6, 4)), ((8, 4) if b else (4, 8))
        for batch in ((), (5,)):
            d = len(batch)
            flags = ("adj_x", "adj_y") if batch else ("transpose_a", "transpose_b")
            view = op(
                "BatchMatMulV2" if batch else "MatMul",
                [spec(*batch, *left), spec(*batch, *right)],
                [spec(*batch, 6, 8)],
                **dict(zip(flags, (bool(a), bool(b)), strict=True)),
            )
            rows, columns, summed = (
                f"S({d + a}),B->S({d})",
                f"B,S({d + 1 - b})->S({d + 1})",
                f"S({d + 1 - a}),S({d + b})->P",
            )
            of_batch = "; S(0),S(0)->S(0)" if batch else ""
            found.append((view, f"{rows}; {columns}; {summed}; P,B->P; B,P->P{of_batch}"))
    return found


IMAGES, MADE, KERNEL = spec(8, 5, 5, 6), spec(8, 5, 5, 4), spec(3, 3, 6, 4)
CONV = {"strides": (1, 1, 1, 1), "padding": "SAME"}
SIZES = [8, 5, 5, 6]

UNARY_LINEAR = ["Identity", "Neg", "StopGradient"]
UNARY = ["Abs", "Erf", "Exp", "Log", "Relu", "Rsqrt", "Sigmoid", "Softplus", "Sqrt", "Square", "Tanh", *UNARY_LINEAR]
BINARY = [
    "AddV2", "Div", "Equal", "FloorDiv", "Greater", "Less", "Maximum", "Minimum", "Mul", "Pow", "RealDiv",
    "SquaredDifference", "Sub",
]  # fmt: skip
RESOURCE = spec(6, 4, dtype="resource")

MINIMUM: list[tuple[OpView, str]] = [
    *((op(t, [spec(6, 4)], [spec(6, 4)]), "S(0)->S(0); S(1)->S(1)") for t in UNARY),
    *((op(t, [spec(6, 4)], [spec(6, 4)]), "P->P") for t in UNARY_LINEAR),
    *((op(t, [spec(6, 4)], [spec(6, 4)]), "Pmax->Pmax; Pmin->Pmin") for t in ("Exp", "Identity", "Relu", "Tanh")),
    (op("Neg", [spec(6)], [spec(6)]), "Pmax->Pmin; Pmin->Pmax"),
    (op("Cast", [spec(6)], [spec(6, dtype="float64")], SrcT=F, DstT="float64"), "S(0)->S(0); P->P"),
    *((op(t, [spec(6, 4), spec(4)], [spec(6, 4)]), "S(0),B->S(0); S(1),S(0)->S(1)") for t in BINARY),
    *((op(t, [spec(6, 1), spec(1, 4)], [spec(6, 4)]), "S(0),B->S(0); B,S(1)->S(1)") for t in BINARY),
    *((op(t, [spec(6), spec(6)], [spec(6)]), "P,P->P") for t in ("Add", "AddV2", "Sub")),
    (op("Mul", [spec(6), spec()], [spec(6)]), "P,B->P; B,P->P"),
    *((op(t, [spec(6), spec()], [spec(6)]), "P,B->P") for t in ("Div", "RealDiv")),
    (op("Maximum", [spec(6), spec(6)], [spec(6)]), "Pmax,Pmax->Pmax"),
    (op("Minimum", [spec(6), spec(6)], [spec(6)]), "Pmin,Pmin->Pmin"),
    *((op(t, [spec(6), spec(6)], [spec(6)]), "S(0),S(0)->S(0); P,B->P") for t in ("ReluGrad", "EluGrad")),
    *((op(t, [spec(6), spec(6)], [spec(6)]), "S(0),S(0)->S(0); B,P->P") for t in ("SigmoidGrad", "RsqrtGrad")),
    (op("AddN", [spec(6, 4)] * 3, [spec(6, 4)]), "S(0),S(0),S(0)->S(0); S(1),S(1),S(1)->S(1); P,P,P->P"),
    (op("SelectV2", [spec(6, 1, dtype="bool"), spec(6, 4), spec()], [spec(6, 4)]), "S(0),S(0),B->S(0); B,S(1),B->S(1)"),
    *matmuls(),
    (
        op("Einsum", [spec(8, 6, 4), spec(4, 2, 3)], [spec(8, 6, 2, 3)], equation="abc,cde->abde"),
        "S(0),B->S(0); S(1),B->S(1); B,S(1)->S(2); B,S(2)->S(3); S(2),S(0)->P; P,B->P; B,P->P",
    ),
    (op("Conv2D", [IMAGES, KERNEL], [MADE], **CONV), "S(0),B->S(0); B,S(3)->S(3); S(3),S(2)->P; P,B->P; B,P->P"),
    (
        op("Conv2DBackpropInput", [SIZES, KERNEL, MADE], [IMAGES], **CONV),
        "B,B,S(0)->S(0); B,S(3),S(3)->P; B,S(2),B->S(3); B,B,P->P",
    ),
    (
        op("Conv2DBackpropFilter", [IMAGES, [3, 3, 6, 4], MADE], [KERNEL], **CONV),
        "S(0),B,S(0)->P; S(3),B,B->S(2); B,B,S(3)->S(3); B,B,P->P",
    ),
    (
        op("DepthwiseConv2dNative", [IMAGES, spec(3, 3, 6, 2)], [spec(8, 5, 5, 12)], **CONV),
        "S(0),B->S(0); S(3),S(2)->S(3:2); P,B->P; B,P->P",
    ),
    (
        op("DepthwiseConv2dNativeBackpropFilter", [IMAGES, [3, 3, 6, 1], IMAGES], [spec(3, 3, 6, 1)], **CONV),
        "S(0),B,S(0)->P; S(3),B,S(3)->S(2)",
    ),
    (op("BiasAdd", [spec(8, 5, 4), spec(4)], [spec(8, 5, 4)]), "S(0),B->S(0); S(1),B->S(1); S(2),S(0)->S(2)"),
    (op("BiasAddGrad", [spec(8, 5, 4)], [spec(4)]), "S(0)->P; S(1)->P; S(2)->S(0); P->P"),
    *(
        (op(t, [IMAGES], [spec(8, 2, 2, 6)], ksize=(1, 2, 2, 1), strides=(1, 2, 2, 1)), "S(0)->S(0); S(3)->S(3)")
        for t in ("AvgPool", "MaxPool")
    ),
    *((op(t, [spec(6, 4), [0]], [spec(4)]), "S(1),B->S(0); S(0),B->P; P,B->P") for t in ("Mean", "Sum")),
    (op("Sum", [spec(6, 4), [0]], [spec(1, 4)], keep_dims=True), "S(1),B->S(1); S(0),B->P"),
    (op("Max", [spec(6, 4), [1]], [spec(6)]), "S(0),B->S(0); S(1),B->Pmax"),
    (op("Min", [spec(6, 4), [1]], [spec(6)]), "S(0),B->S(0); S(1),B->Pmin"),
    *((op(t, [spec(6, 4), [1]], [spec(6)]), "S(0),B->S(0)") for t in ("ArgMax", "Prod")),
    *((op(t, [spec(6, 4, dtype="bool"), [1]], [spec(6, dtype="bool")]), "S(0),B->S(0)") for t in ("All", "Any")),
    (op("L2Loss", [spec(6, 4)], [spec()]), "S(0)->P; S(1)->P"),
    *((op(t, [spec(6, 4), [1]], [spec(6, 4)]), "S(0),B->S(0)") for t in ("Cumprod", "Cumsum")),
    (op("ReadVariableOp", [RESOURCE], [spec(6, 4)]), "S(0)->S(0); S(1)->S(1); P->P"),
    *(
        (op(f"Assign{k}VariableOp", [RESOURCE, spec(6, 4)], []), "S(0),S(0)->; S(1),S(1)->; P,P->")
        for k in ("Add", "Sub")
    ),
    (op("AssignVariableOp", [RESOURCE, spec(6, 4)], []), "S(0),S(0)->; S(1),S(1)->"),
    (
        op("ResourceApplyAdam", [RESOURCE] * 3 + [spec()] * 6 + [spec(6, 4)], []),
        "S(0),S(0),S(0),B,B,B,B,B,B,S(0)->; S(1),S(1),S(1),B,B,B,B,B,B,S(1)->",
    ),
    (op("ResourceScatterAdd", [RESOURCE, spec(3, dtype="int32"), spec(3, 4)], []), "S(1),B,S(1)->"),
]


@pytest.mark.parametrize(("view", "wanted"), MINIMUM, ids=[f"{v.type}-{i}" for i, (v, _) in enumerate(MINIMUM)])
def test_offers_at_least(view: OpView, wanted: str) -> None:
    offered = registry.signatures(view)
    plain = {(s.inputs, s.outputs) for s in offered}
    missing = [text.strip() for text in wanted.split(";") if signature(text)[:2] not in plain]
    assert not missing, f"{view.type} does not offer {missing}; it offers {[str(s) for s in offered]}"


NEVER: list[tuple[OpView, str]] = [
    (op("AddV2", [spec(6), spec(6)], [spec(6)]), "P,B->P; B,P->P"),
    (op("Mul", [spec(6), spec(6)], [spec(6)]), "P,P->P"),
    (op("Relu", [spec(6)], [spec(6)]), "P->P"),
    (op("Square", [spec(6)], [spec(6)]), "P->P"),
    (op("Log", [spec(6)], [spec(6)]), "Pmax->Pmax"),
    (op("BiasAdd", [spec(8, 4), spec(4)], [spec(8, 4)]), "P,B->P"),
    (op("Max", [spec(6, 4), [1]], [spec(6)]), "P,B->P; S(1),B->P"),
    (op("Cast", [spec(6, dtype="int32")], [spec(6)], SrcT="int32", DstT=F), "P->P"),
    (op("Conv2D", [spec(8, 5, 5, 12), KERNEL], [MADE], **CONV), "S(3),S(2)->P; B,S(3)->S(3)"),
]


@pytest.mark.parametrize(("view", "wrong"), NEVER, ids=[f"{v.type}-{i}" for i, (v, _) in enumerate(NEVER)])
def test_never_offers(view: OpView, wrong: str) -> None:
    plain = {(s.inputs, s.outputs) for s in registry.signatures(view)}
    offered = [text.strip() for text in wrong.split(";") if signature(text)[:2] in plain]
    assert not offered, f"{view.type} offers {offered}, which is wrong"


def test_unknown_shapes_are_whole() -> None:
    view = OpView("Relu", {}, (TensorSpec(None, F),), (TensorSpec(None, F),), (None,))
    assert [str(s) for s in registry.signatures(view)] == ["B -> B"]
