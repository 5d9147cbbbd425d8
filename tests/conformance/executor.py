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
from tensorflow.python.eager import context
from tensorflow.python.eager import execute as eager
from tensorflow.python.framework import op_def_library, op_def_registry

import whaleish.rules
from whaleish.mesh import Axis, Mesh
from whaleish.rules.rule import Fragment, OpView, Rule, Signature, TensorSpec
from whaleish.sbp import B, Layout, S

registry = whaleish.rules.registry

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
        return f"{self.type}-{shapes.replace(' ', '')}-{attrs}".rstrip("-").replace(" ", "")

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


# Executing an op of any type ------------------------------------------------------------------------------------------


def complete_attrs(type: str, dtypes: Sequence[str], given: Mapping[str, Any]) -> dict[str, Any]:
    """Adds what the inputs imply and the defaults, in the form that capture gives (types by name, shapes as tuples)."""
    definition = op_def_registry.get(type)
    attrs = {attr.name: _plain(attr.default_value) for attr in definition.attr if attr.HasField("default_value")}
    attrs |= given
    lists = [arg for arg in definition.input_arg if arg.number_attr]
    singles = len(definition.input_arg) - len(lists)
    at = 0
    for arg in definition.input_arg:
        length = 1
        if arg.type_list_attr:
            length = len(attrs.setdefault(arg.type_list_attr, tuple(dtypes[at:])))
        elif arg.number_attr:
            length = attrs.setdefault(arg.number_attr, (len(dtypes) - singles) // len(lists))
        if arg.type_attr and length:
            attrs[arg.type_attr] = dtypes[at]
        at += length
    return attrs


def _plain(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "type":
        return tf.as_dtype(value.type).name
    if kind == "s":
        return value.s.decode()
    if kind == "shape":
        return None if value.shape.unknown_rank else tuple(dim.size for dim in value.shape.dim)
    if kind == "list":
        filled = next((items for _, items in value.list.ListFields()), ())
        return tuple(item.decode() if isinstance(item, bytes) else item for item in filled)
    return getattr(value, kind)


def execute(type: str, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> list[Any]:
    """Executes an op eagerly. Every attribute without a default must be given, as a GraphDef would need it."""
    definition = op_def_registry.get(type)
    if definition is None:
        raise ValueError(f"TensorFlow has no op type {type}")
    if _has_no_cpu_kernel(type, inputs, attrs):
        return _execute_compiled(type, inputs, attrs)
    flat: list[Any] = []
    known = {attr.name for attr in definition.attr}
    if unknown := [name for name in attrs if name not in known and not name.startswith("_")]:
        raise ValueError(f"{type} has no attributes {unknown}")
    for attr in definition.attr:
        if attr.name in attrs:
            flat += [attr.name, _wire(attr.type, attrs[attr.name])]
        elif not attr.HasField("default_value"):
            raise ValueError(f"{type} was emitted without its attribute {attr.name!r}, which has no default")
    count = 0
    for arg in definition.output_arg:
        length = attrs[arg.number_attr] if arg.number_attr else 1
        count += len(attrs[arg.type_list_attr]) if arg.type_list_attr else length
    return list(eager.execute(type.encode(), count, list(inputs), tuple(flat), context.context()) or ())


def _has_no_cpu_kernel(type: str, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> bool:
    """Convolutions that only XLA can do on a CPU: channels first, and gradients with dilations or groups."""
    if not any(word in type for word in ("Conv", "Pool", "BatchNorm")):
        return False
    if attrs.get("data_format", "N").startswith("NC"):
        return True
    if "Backprop" not in type or type.startswith("Depthwise"):
        return False
    images, kernel, _ = (tuple(x.numpy()) if x.dtype == tf.int32 else tuple(x.shape) for x in inputs)
    return max(attrs["dilations"]) > 1 or images[-1] != kernel[-2]


_compiled: dict[Any, Any] = {}


def _execute_compiled(type: str, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> list[Any]:
    """Executes an op by XLA; what is integer there are sizes, which it needs when it compiles."""
    sizes = {i: tuple(map(int, x.numpy())) for i, x in enumerate(inputs) if x.dtype == tf.int32}
    key = (type, tuple(sorted(attrs.items())), tuple(tuple(x.shape) for x in inputs), tuple(sizes.items()))
    if key not in _compiled:
        arguments = op_def_registry.get(type).input_arg
        names = [arg.name for arg in arguments]
        found = {arg.type_attr for arg in arguments}
        others = {name: value for name, value in attrs.items() if name not in found}

        def call(*refs: Any) -> Any:
            values = {names[i]: np.array(sizes[i], np.int32) if i in sizes else ref for i, ref in enumerate(refs)}
            return op_def_library.apply_op(type, **values, **others)

        _compiled[key] = tf.function(call, jit_compile=True)
    made = _compiled[key](*inputs)
    return list(made) if isinstance(made, list | tuple) else [made]


def _wire(kind: str, value: Any) -> Any:
    if kind == "type":
        return tf.as_dtype(value).as_datatype_enum
    if kind == "list(type)":
        return [tf.as_dtype(item).as_datatype_enum for item in value]
    return list(value) if kind.startswith("list") else value


def _tensor(value: np.ndarray) -> tf.Tensor:
    return tf.constant(value, tf.as_dtype(value.dtype))


def _execute_numpy(type: str, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    if type == "AccumulateNV2":  # Has no eager kernel: the graph optimizer writes it out.
        made = tf.function(lambda: tf.raw_ops.AccumulateNV2(inputs=list(map(_tensor, inputs)), shape=attrs["shape"]))()
        return [made.numpy()], []
    variables = [tf.Variable(v.value) if isinstance(v, Resource) else None for v in inputs]
    refs = [_tensor(v) if var is None else var.handle for v, var in zip(inputs, variables, strict=True)]
    outputs = [out.numpy() for out in execute(type, refs, attrs)]
    return [np.asarray(out) for out in outputs], [var.numpy() for var in variables if var is not None]


# Cutting and joining --------------------------------------------------------------------------------------------------


def cut(value: np.ndarray, layout: Layout, axes: Sequence[Axis], rng: np.random.Generator) -> list[np.ndarray]:
    """The parts of a value, the last axis fastest. Summands (and what a max or min takes in) are random."""
    if not axes:
        return [value]
    sbp, axis = layout[0], axes[0]
    if sbp.is_broadcast:
        return cut(value, layout[1:], axes[1:], rng) * axis.size
    if sbp.is_split:
        pieces = np.split(value, axis.cuts(value.shape[sbp.dim], sbp.unit)[1:-1], sbp.dim)
    else:
        pieces = _summands(value, sbp.kind, axis.size, rng)
    return [part for piece in pieces for part in cut(piece, layout[1:], axes[1:], rng)]


def _summands(value: np.ndarray, kind: str, count: int, rng: np.random.Generator) -> list[np.ndarray]:
    def noise() -> np.ndarray:
        if value.dtype.kind in "iu":
            return rng.integers(0, 4, value.shape).astype(value.dtype)
        if value.dtype.kind == "b":
            raise ValueError("a bool tensor cannot be partial")
        return np.asarray(rng.uniform(0.1, 2.0, value.shape)).astype(value.dtype)

    if kind == "P":
        parts = [noise() * rng.choice([-1, 1]).astype(value.dtype) for _ in range(count - 1)]
        return [*parts, (value - sum(parts)).astype(value.dtype)] if parts else [value]
    owner = rng.integers(0, count, value.shape)
    sign = -1 if kind == "Pmax" else 1
    return [np.where(owner == k, value, (value + sign * noise()).astype(value.dtype)) for k in range(count)]


class Unequal(AssertionError):
    """Parts that were declared B differ."""


def join(parts: Sequence[np.ndarray], layout: Layout, axes: Sequence[Axis]) -> np.ndarray:
    """The inverse of `cut`; raises `Unequal` where parts of a B layout differ."""
    if not axes:
        return parts[0]
    inner = len(parts) // axes[0].size
    pieces = [join(parts[k * inner : (k + 1) * inner], layout[1:], axes[1:]) for k in range(axes[0].size)]
    kind = layout[0].kind
    if kind == "S":
        return np.concatenate(pieces, layout[0].dim)
    if kind == "B":
        for k, piece in enumerate(pieces):
            if piece.shape != pieces[0].shape or not _equal(piece, pieces[0]):
                raise Unequal(f"part {k} of a B tensor is {piece!r}, part 0 is {pieces[0]!r}")
        return pieces[0]
    if kind == "P":
        return sum(pieces[1:], pieces[0]).astype(pieces[0].dtype)
    combine = np.maximum if kind == "Pmax" else np.minimum
    return combine.reduce(pieces)


def _equal(a: np.ndarray, b: np.ndarray) -> bool:
    if a.dtype.kind in "fc" or a.dtype.name == "bfloat16":
        # The same kernel on the same values, but threads may add in another order.
        return np.allclose(a.astype(np.complex128), b.astype(np.complex128), 1e-12, 1e-12, equal_nan=True)
    return np.array_equal(a, b)


# Lowering, eagerly ----------------------------------------------------------------------------------------------------


@dataclass
class EagerLowering:
    """The `Lowering` protocol carried out by TensorFlow's eager kernels, for one part."""

    op: OpView
    mesh: Mesh
    part: int
    refs: Sequence[Any]
    layouts_in: Sequence[Layout]
    layouts_out: Sequence[Layout]

    def input(self, index: int) -> Any:
        return self.refs[index]

    def layout_in(self, index: int) -> Layout:
        return self.layouts_in[index]

    def layout_out(self, index: int) -> Layout:
        return self.layouts_out[index]

    def shape_in(self, index: int) -> tuple[int, ...]:
        return self._piece(self.op.inputs[index], self.layouts_in[index], 1)

    def shape_out(self, index: int) -> tuple[int, ...]:
        return self._piece(self.op.outputs[index], self.layouts_out[index], 1)

    def start_in(self, index: int) -> tuple[int, ...]:
        return self._piece(self.op.inputs[index], self.layouts_in[index], 0)

    def start_out(self, index: int) -> tuple[int, ...]:
        return self._piece(self.op.outputs[index], self.layouts_out[index], 0)

    def _piece(self, spec: TensorSpec, layout: Layout, which: int) -> tuple[int, ...]:
        if spec.shape is None:
            raise ValueError("the shape of this tensor is unknown")
        return tuple(piece[which] for piece in self.mesh.pieces(spec.shape, layout, self.part))

    def const(self, value: Any, dtype: str) -> Any:
        return tf.constant(value, tf.as_dtype(dtype))

    def emit(self, type: str, inputs: Sequence[Any], outputs: int = 1, **attrs: Any) -> Any:
        made = execute(type, inputs, attrs)
        if len(made) != outputs:
            raise ValueError(f"{type} has {len(made)} outputs, and {outputs} were asked for")
        return made[0] if outputs == 1 else made

    def same(self, inputs: Mapping[int, Any] | None = None, **attrs: Any) -> list[Any]:
        refs = [(inputs or {}).get(index, ref) for index, ref in enumerate(self.refs)]
        return execute(self.op.type, refs, {**self.op.attrs, **attrs})


# Running a signature --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Boxing:
    """A change of layout that an expansion made: where, from what, to what, and the bytes of the logical tensor."""

    step: str
    before: Layout
    after: Layout
    size: int


def scaled(signature: Signature, factor: int) -> Signature:
    """The signature with all its units multiplied."""

    def scale(sbps: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(S(s.dim, s.unit * factor) if s.is_split else s for s in sbps)

    return signature._replace(inputs=scale(signature.inputs), outputs=scale(signature.outputs))


def layouts(signatures: Sequence[Signature]) -> tuple[list[Layout], list[Layout]]:
    """Layouts of inputs and outputs on a mesh, from one signature per axis."""
    return (
        [tuple(entry) for entry in zip(*(s.inputs for s in signatures), strict=True)],
        [tuple(entry) for entry in zip(*(s.outputs for s in signatures), strict=True)],
    )


def fits(op: OpView, signatures: Sequence[Signature], mesh: Mesh) -> bool:
    """Whether every part can be cut: lengths are whole units, and no part is empty where the rule forbids that."""
    rule = registry.get(op.type)
    ins, outs = layouts(signatures)
    for spec, layout in zip((*op.inputs, *op.outputs), (*ins, *outs), strict=True):
        if not any(sbp.is_split for sbp in layout):
            continue
        if any(sbp.is_split and sbp.dim >= spec.rank for sbp in layout):
            raise ValueError(f"{op.type}: {layout} splits a dim that a tensor of shape {spec.shape} does not have")
        for part in range(mesh.size):
            try:
                local = mesh.local_shape(spec.shape, layout, part)
            except ValueError:
                return False
            empty = any(not n and whole for n, whole in zip(local, spec.shape, strict=True))
            if empty and rule is not None and not rule.split_empty:
                return False
    return True


def run_parts(
    op: OpView,
    rule: Rule | None,
    ins: Sequence[Layout],
    outs: Sequence[Layout],
    mesh: Mesh,
    refs: Sequence[Sequence[Any]],
) -> list[list[Any]]:
    """Runs the op on every part; `refs[part]` are its local inputs. Checks the shapes of what comes out."""
    made = []
    for part in range(mesh.size):
        lowering = EagerLowering(op, mesh, part, refs[part], ins, outs)
        results = rule.lower(lowering) if rule is not None and rule.lower is not None else lowering.same()
        assert len(results) == len(op.outputs), f"{op.type}: {len(results)} outputs, {len(op.outputs)} expected"
        for index, result in enumerate(results):
            expected = lowering.shape_out(index)
            assert tuple(result.shape) == expected, (
                f"{op.type} output {index} of part {part} has shape {tuple(result.shape)}; its layout "
                f"{outs[index]} of {op.outputs[index].shape} says {expected}"
            )
            assert result.dtype.name == op.outputs[index].dtype, f"{op.type} output {index} is {result.dtype.name}"
        made.append(list(results))
    return made


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
            columns.append([_tensor(part) for part in cut(value, layout, mesh.axes, rng)])
    boxings: list[Boxing] = []
    if any(s.expands for s in signatures):
        if rule is None or rule.expand is None:
            raise AssertionError(f"{op.type} offers a signature that expands, and its rule has no `expand`")
        made = _run_fragment(rule.expand(op), columns, ins, outs, mesh, rng, boxings)
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


# Expansions -----------------------------------------------------------------------------------------------------------


def _run_fragment(
    fragment: Fragment,
    columns: Sequence[Sequence[Any]],
    ins: Sequence[Layout],
    outs: Sequence[Layout],
    mesh: Mesh,
    rng: np.random.Generator,
    boxings: list[Boxing],
) -> list[list[Any]]:
    """Runs a fragment step by step, each under the signatures that fit the layouts at hand best."""
    held = [(layout, list(column)) for layout, column in zip(ins, columns, strict=True)]
    known = dict(fragment.constants) | {i: c for i, c in enumerate(fragment.op.constants) if c is not None}

    def boxed(value: int, after: Layout, step: str) -> list[Any]:
        before, parts = held[value]
        if before == after:
            return parts
        whole = join([part.numpy() for part in parts], before, mesh.axes)
        boxings.append(Boxing(step, before, after, whole.nbytes))
        return [_tensor(part) for part in cut(whole, after, mesh.axes, rng)]

    for type, inputs, made, attrs in fragment.steps:
        if type == "Const":
            assert made[0] == len(held)
            held.append(((B,) * len(mesh.axes), [_tensor(fragment.constants[made[0]])] * mesh.size))
            continue
        specs = fragment.specs
        op = OpView(
            type,
            attrs,
            tuple(specs[i] for i in inputs),
            tuple(specs[i] for i in made),
            tuple(known.get(i) for i in inputs),
        )
        chosen = _choose(op, [held[i][0] for i in inputs], mesh)
        step_ins, step_outs = layouts(chosen)
        ready = [boxed(value, layout, type) for value, layout in zip(inputs, step_ins, strict=True)]
        refs = [[column[part] for column in ready] for part in range(mesh.size)]
        results = run_parts(op, registry.get(type), step_ins, step_outs, mesh, refs)
        held += [(layout, [row[i] for row in results]) for i, layout in enumerate(step_outs)]
    final = [boxed(value, layout, "output") for value, layout in zip(fragment.outputs, outs, strict=True)]
    return [[column[part] for column in final] for part in range(mesh.size)]


def _choose(op: OpView, at_hand: Sequence[Layout], mesh: Mesh) -> list[Signature]:
    """For each axis the cheapest signature, axis after axis; the rest of the axes are taken all-B meanwhile."""
    offers = [s for s in registry.signatures(op) if not s.expands]
    chosen = [offers[0]] * len(mesh.axes)
    for axis in range(len(mesh.axes)):
        best = None
        for offer in offers:
            units = {
                h[axis].unit // s.unit
                for h, s in zip(at_hand, offer.inputs, strict=True)
                if s.is_split and h[axis].is_split
            }
            candidate = scaled(offer, max(units)) if units and max(units) > 1 else offer
            trial = [*chosen[:axis], candidate, *chosen[axis + 1 :]]
            if not fits(op, trial, mesh):
                continue
            cost = sum(
                _price(h[axis], s) * np.prod(spec.shape or (1,))
                for h, s, spec in zip(at_hand, candidate.inputs, op.inputs, strict=True)
            )
            # A tie goes to the signature that divides the work.
            cost += 1e-3 * all(sbp.is_broadcast for sbp in (*candidate.inputs, *candidate.outputs))
            if best is None or cost < best[0]:
                best = cost, candidate
        assert best is not None
        chosen[axis] = best[1]
    return chosen


def _price(before: Any, after: Any) -> float:
    if before == after:
        return 0.0
    if before.is_broadcast:
        return 1e-6 if after.is_split else 1e-5
    if before.is_split:
        # A slice is a summand for nothing, but the whole has to be summed later.
        return 3.0 if after.is_partial else 1.0
    return 1.0 if after.is_split else 2.0


# Meshes to test on ----------------------------------------------------------------------------------------------------

AXES = (Axis("a", 2), Axis("a", 3), Axis("a", 4), Axis("a", 2, (3, 1)))
"""Single axes: even and uneven cuts, more parts than elements, and devices of unequal speed."""

MESHES = tuple(
    Mesh(axes) for axes in itertools.product((Axis("x", 2), Axis("x", 3)), (Axis("y", 2), Axis("y", 2, (1, 2))))
)
"""Meshes of two axes."""
