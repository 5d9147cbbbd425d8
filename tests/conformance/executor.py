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
from tensorflow.python.framework import op_def_registry

from tests.conformance.fragments import Boxing, run_fragment
from tests.conformance.kernels import complete_attrs, execute, tensor
from tests.conformance.lowering import fits, layouts, registry, run_parts, scaled
from tests.conformance.parts import cut, join
from whaleish.mesh import Axis, Mesh
from whaleish.rules import lists
from whaleish.rules.rule import OpView, Signature, TensorSpec
from whaleish.sbp import Layout

TOLERANCE = {"float64": 1e-9, "complex128": 1e-9, "float32": 2e-5, "complex64": 2e-5, "float16": 2e-2, "bfloat16": 1e-1}


@dataclass(frozen=True, eq=False)
class Resource:
    """An input that is a variable with this value; what it holds afterwards is compared like an output."""

    value: np.ndarray


@dataclass(frozen=True, eq=False)
class Listed:
    """An input that is a list of this value's rows; or an optional that holds the value."""

    value: np.ndarray
    optional: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        return self.value.shape if self.optional else self.value.shape[1:]

    def cut(self, layout: Layout, mesh: Mesh, rng: np.random.Generator) -> list[Any]:
        """The parts, as variants."""
        stacked = layout if self.optional else tuple(lists.stacked(sbp) for sbp in layout)
        return [self.variant(part) for part in cut(self.value, stacked, mesh.axes, rng)]

    def variant(self, part: np.ndarray) -> tf.Tensor:
        if self.optional:
            return tf.raw_ops.OptionalFromValue(components=[tensor(part)])
        return tf.raw_ops.TensorListFromTensor(tensor=tensor(part), element_shape=part.shape[1:])


def _content(variant: tf.Tensor, op: OpView, shape: tuple[int, ...]) -> np.ndarray:
    """What a list or an optional holds."""
    dtype = op.attrs.get("element_dtype", "float64")
    if not op.type.startswith("Optional"):
        return np.asarray(tf.raw_ops.TensorListStack(input_handle=variant, element_shape=shape, element_dtype=dtype))
    if not tf.raw_ops.OptionalHasValue(optional=variant):
        return np.zeros(shape)
    types, shapes = [tf.as_dtype(dtype)], [shape]
    (value,) = tf.raw_ops.OptionalGetValue(optional=variant, output_types=types, output_shapes=shapes)
    return value.numpy()


@dataclass(frozen=True, eq=False)
class Case:
    """An op with concrete logical inputs.

    Attributes:
      attrs: those that differ from the defaults; types of inputs and lengths of lists are found from the inputs.
      constants: indices of the inputs whose values are known before running.
      exact: outputs must agree bit for bit (moves of data); otherwise up to rounding.
      tolerance: in place of the one of the dtype.
      elements: shape of the elements of the list that the op makes, where it reads none.
      unset: outputs that TensorFlow leaves as they lay in memory, so that no two runs have the same.
    """

    type: str
    inputs: tuple[np.ndarray | Resource | Listed, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    constants: tuple[int, ...] = ()
    exact: bool = False
    tolerance: float | None = None
    elements: tuple[int, ...] | None = None
    unset: tuple[int, ...] = ()

    def __str__(self) -> str:
        shapes = "x".join(
            "r" * isinstance(v, Resource)
            + "l" * isinstance(v, Listed)
            + str(list(v.value.shape if isinstance(v, Resource) else v.shape))
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
        variants = [arg.type == tf.variant.as_datatype_enum for arg in op_def_registry.get(self.type).output_arg]
        if any(variants):
            outputs = tuple(
                TensorSpec(self.element_shape, "variant") if variant else spec
                for variant, spec in zip(variants, outputs, strict=True)
            )
        return OpView(self.type, attrs, tuple(map(_spec, self.inputs)), outputs, values)

    @property
    def element_shape(self) -> tuple[int, ...]:
        """Of the list that the op reads or makes."""
        read = [v.shape for v in self.inputs if isinstance(v, Listed)]
        return read[0] if read else self.elements or ()

    @property
    def reference(self) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """The op's outputs on one device, and what its variables hold afterwards."""
        found = self.__dict__.get("_reference")
        if found is None:
            attrs = complete_attrs(self.type, [_dtype(v) for v in self.inputs], self.attrs)
            found = _execute_numpy(self, attrs)
            object.__setattr__(self, "_reference", found)
        return found


def _dtype(value: np.ndarray | Resource | Listed) -> str:
    if isinstance(value, Listed):
        return "variant"
    return "resource" if isinstance(value, Resource) else tf.as_dtype(value.dtype).name


def _spec(value: np.ndarray | Resource | Listed) -> TensorSpec:
    return TensorSpec(value.value.shape if isinstance(value, Resource) else value.shape, _dtype(value))


def _execute_numpy(case: Case, attrs: Mapping[str, Any]) -> Any:
    type, inputs = case.type, [v.variant(v.value) if isinstance(v, Listed) else v for v in case.inputs]
    if type == "AccumulateNV2":  # Has no eager kernel: the graph optimizer writes it out.
        made = tf.function(lambda: tf.raw_ops.AccumulateNV2(inputs=list(map(tensor, inputs)), shape=attrs["shape"]))()
        return [made.numpy()], []
    variables = [tf.Variable(v.value) if isinstance(v, Resource) else None for v in inputs]
    refs = [
        v if isinstance(v, tf.Tensor) else tensor(v) if var is None else var.handle
        for v, var in zip(inputs, variables, strict=True)
    ]
    made = OpView(type, attrs, (), (), ())
    outputs = [_value(out, made, case.element_shape) for out in execute(type, refs, attrs)]
    return [np.asarray(out) for out in outputs], [var.numpy() for var in variables if var is not None]


def _value(made: tf.Tensor, op: OpView, shape: tuple[int, ...]) -> np.ndarray:
    return _content(made, op, shape) if made.dtype == tf.variant else made.numpy()


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
        elif isinstance(value, Listed):
            columns.append(value.cut(layout, mesh, rng))
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
        if index in case.unset:
            continue
        spec, layout = op.outputs[index], outs[index]
        local = [mesh.local_shape(spec.shape or (), layout, part) for part in range(mesh.size)]
        parts = [np.asarray(_value(row[index], op, shape)) for row, shape in zip(made, local, strict=True)]
        if spec.dtype == "variant" and not op.type.startswith("Optional"):
            layout = tuple(lists.stacked(sbp) for sbp in layout)
        _compare(case, f"output {index}", join(parts, layout, mesh.axes), value)
    for (layout, stored), value in zip(variables, after, strict=True):
        _compare(case, "variable", join([v.numpy() for v in stored], layout, mesh.axes), value)
    return boxings


def _compare(case: Case, what: str, got: np.ndarray, wanted: np.ndarray) -> None:
    assert got.shape == wanted.shape, f"{what}: shape {got.shape}, expected {wanted.shape}"
    if case.exact or _dtype(wanted) not in TOLERANCE:
        np.testing.assert_array_equal(got, wanted, what)
    else:
        # The coarsest dtype that takes part sets the rounding: summands of an input were rounded too.
        dtypes = {_dtype(wanted)} | {_dtype(getattr(v, "value", v)) for v in case.inputs}
        tolerance = case.tolerance or max(TOLERANCE.get(dtype, 0.0) for dtype in dtypes)
        kind = np.complex128 if wanted.dtype.kind == "c" else np.float64
        np.testing.assert_allclose(got.astype(kind), wanted.astype(kind), tolerance, tolerance, err_msg=what)


AXES = (Axis("a", 2), Axis("a", 3), Axis("a", 4), Axis("a", 2, (3, 1)))
"""Single axes: even and uneven cuts, more parts than elements, and devices of unequal speed."""

MESHES = tuple(
    Mesh(axes) for axes in itertools.product((Axis("x", 2), Axis("x", 3)), (Axis("y", 2), Axis("y", 2, (1, 2))))
)
"""Meshes of two axes."""

__all__ = ["AXES", "MESHES", "Boxing", "Case", "Listed", "Resource", "fits", "registry", "run_signature", "scaled"]
