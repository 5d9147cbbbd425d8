"""Runs one op part by part, eagerly, under a declared signature, and compares it with the same op on one device.

    values --cut--> parts --lower, or the op itself, per part--> parts --join--> values == the op on whole values

Everything here is TensorFlow's eager kernels and numpy: no planner, no graph, no communication. So it checks the rules
alone, and what a rule emits is held to the op's definition: every attribute without a default must be given.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

from tests.conformance.fragments import Boxing, run_fragment
from tests.conformance.kernels import complete_attrs, execute, tensor
from tests.conformance.lowering import fits, layouts, registry, run_parts, scaled
from tests.conformance.parts import cut, join
from whaleish.mesh import Axis, Mesh
from whaleish.rules.rule import OpView, Signature, TensorSpec

TOLERANCE = {"float64": 1e-9, "complex128": 1e-9, "float32": 2e-5, "complex64": 2e-5, "float16": 2e-2, "bfloat16": 1e-1}


@dataclass(frozen=True, eq=False)
class Resource:
    """An input that is a variable with this value; what it holds afterwards is compared like an output."""

    value: np.ndarray


@dataclass(frozen=True, eq=False)
class Case:
    """An op with concrete logical inputs.

    Attributes:
      attrs: those that differ from the defaults; types of inputs and lengths of lists are found from the inputs.
      constants: indices of the inputs whose values are known before running.
      exact: outputs must agree bit for bit (moves of data); otherwise up to rounding.
      tolerance: in place of the one of the dtype.
    """

    type: str
    inputs: tuple[np.ndarray | Resource, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    constants: tuple[int, ...] = ()
    exact: bool = False
    tolerance: float | None = None

    def __str__(self) -> str:
        shapes = "x".join(
            "r" * isinstance(v, Resource) + str(list(v.value.shape if isinstance(v, Resource) else v.shape))
            for v in self.inputs
        )
        attrs = ",".join(f"{name}={value}" for name, value in self.attrs.items())
        dtypes = {_dtype(v) for v in self.inputs} - {"resource", "float32", "float64", "int32"}
        parts = (self.type, *sorted(dtypes), shapes, attrs)
        return "-".join(part for part in parts if part).replace(" ", "")

    def view(self) -> OpView:
        """What a rule sees of the op: all attributes in Python form, shapes of inputs and outputs, constants."""
        attrs = complete_attrs(self.type, [_dtype(v) for v in self.inputs], self.attrs)
        values = tuple(v if i in self.constants else None for i, v in enumerate(self.inputs))
        outputs = tuple(TensorSpec(v.shape, tf.as_dtype(v.dtype).name) for v in self.reference[0])
        return OpView(self.type, attrs, tuple(map(_spec, self.inputs)), outputs, values)

    @property
    def reference(self) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """The op's outputs on one device, and what its variables hold afterwards."""
        found = self.__dict__.get("_reference")
        if found is None:
            attrs = complete_attrs(self.type, [_dtype(v) for v in self.inputs], self.attrs)
            found = _execute_numpy(self.type, self.inputs, attrs)
            object.__setattr__(self, "_reference", found)
        return found


def _dtype(value: np.ndarray | Resource) -> str:
    return "resource" if isinstance(value, Resource) else tf.as_dtype(value.dtype).name


def _spec(value: np.ndarray | Resource) -> TensorSpec:
    return TensorSpec(value.value.shape if isinstance(value, Resource) else value.shape, _dtype(value))


def _execute_numpy(type: str, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    if type == "AccumulateNV2":  # Has no eager kernel: the graph optimizer writes it out.
        made = tf.function(lambda: tf.raw_ops.AccumulateNV2(inputs=list(map(tensor, inputs)), shape=attrs["shape"]))()
        return [made.numpy()], []
    variables = [tf.Variable(v.value) if isinstance(v, Resource) else None for v in inputs]
    refs = [tensor(v) if var is None else var.handle for v, var in zip(inputs, variables, strict=True)]
    outputs = [out.numpy() for out in execute(type, refs, attrs)]
    return [np.asarray(out) for out in outputs], [var.numpy() for var in variables if var is not None]


def run_signature(case: Case, signatures: Sequence[Signature], mesh: Mesh, seed: int = 0) -> list[Boxing]:
    """Runs a case under one signature per mesh axis and asserts that it equals the single-device op.

    Returns the boxings inside, when a signature expands.
    """
    op, rule, rng = case.view(), registry.get(case.type), np.random.default_rng(seed)
    ins, outs = layouts(signatures)
    columns, variables = [], []
    for value, layout in zip(case.inputs, ins, strict=True):
        if isinstance(value, Resource):
            stored = [tf.Variable(part) for part in cut(value.value, layout, mesh.axes, rng)]
            variables.append((layout, stored))
            columns.append([v.handle for v in stored])
        else:
            columns.append([tensor(part) for part in cut(value, layout, mesh.axes, rng)])
    boxings: list[Boxing] = []
    if any(s.expands for s in signatures):
        if rule is None or rule.expand is None:
            raise AssertionError(f"{op.type} offers a signature that expands, and its rule has no `expand`")
        expands = [s.expands for s in signatures]
        made = run_fragment(rule.expand(op), expands, columns, ins, outs, mesh, rng, boxings)
    else:
        refs = [[column[part] for column in columns] for part in range(mesh.size)]
        made = run_parts(op, rule, ins, outs, mesh, refs)
    wanted, after = case.reference
    for index, value in enumerate(wanted):
        parts = [np.asarray(row[index].numpy()) for row in made]
        _compare(case, f"output {index}", join(parts, outs[index], mesh.axes), value)
    for (layout, stored), value in zip(variables, after, strict=True):
        _compare(case, "variable", join([v.numpy() for v in stored], layout, mesh.axes), value)
    return boxings


def _compare(case: Case, what: str, got: np.ndarray, wanted: np.ndarray) -> None:
    assert got.shape == wanted.shape, f"{what}: shape {got.shape}, expected {wanted.shape}"
    if case.exact or _dtype(wanted) not in TOLERANCE:
        np.testing.assert_array_equal(got, wanted, what)
    else:
        # The coarsest dtype that takes part sets the rounding: summands of an input were rounded too.
        dtypes = {_dtype(wanted)} | {_dtype(v.value if isinstance(v, Resource) else v) for v in case.inputs}
        tolerance = case.tolerance or max(TOLERANCE.get(dtype, 0.0) for dtype in dtypes)
        kind = np.complex128 if wanted.dtype.kind == "c" else np.float64
        np.testing.assert_allclose(got.astype(kind), wanted.astype(kind), tolerance, tolerance, err_msg=what)


AXES = (Axis("a", 2), Axis("a", 3), Axis("a", 4), Axis("a", 2, (3, 1)))
"""Single axes: even and uneven cuts, more parts than elements, and devices of unequal speed."""

MESHES = tuple(
    Mesh(axes) for axes in itertools.product((Axis("x", 2), Axis("x", 3)), (Axis("y", 2), Axis("y", 2, (1, 2))))
)
"""Meshes of two axes."""

__all__ = ["AXES", "MESHES", "Boxing", "Case", "Resource", "fits", "registry", "run_signature", "scaled"]
