"""Which is the largest: arg-reductions, top-k, and whether a target is among the top.

Where the classes are split, only numbers per row travel, as in the losses: the largest value, the first place that has
it; a target's value, how many are above it.
"""

from __future__ import annotations

import math

import numpy as np

from whaleish.rules.forms import real, reduced_dims, width
from whaleish.rules.movement import place
from whaleish.rules.reduction import reductions
from whaleish.rules.rule import Fragment, OpView, Signature, TensorSpec, registry
from whaleish.sbp import B, S


def _first_place(op: OpView) -> Fragment:
    """The least place at which the extreme lies; that of an element that equals nothing, NaN, is the last."""
    fragment = Fragment(op)
    shape, dtype = op.inputs[0].shape or (), op.inputs[0].dtype
    (dim,) = reduced_dims(op, 1, len(shape)) or (0,)
    length, row = shape[dim], (*shape[:dim], 1, *shape[dim + 1 :])
    axis = fragment.const([dim], "int32")
    types = {"T": dtype, "Tidx": "int32"}
    kind = "Max" if op.type == "ArgMax" else "Min"
    extreme = fragment.emit(kind, [0, axis], [TensorSpec(row, dtype)], keep_dims=True, **types)
    hit = fragment.emit("Equal", [0, extreme], [TensorSpec(shape, "bool")], T=dtype)
    steps = np.arange(length).reshape([length if d == dim else 1 for d in range(len(shape))])
    places, last = fragment.const(steps, "int32"), fragment.const(length - 1, "int32")
    found = fragment.emit("SelectV2", [hit, places, last], [TensorSpec(shape, "int32")], T="int32")
    result = TensorSpec(op.outputs[0].shape, "int32")
    first = fragment.emit("Min", [found, axis], [result], keep_dims=False, T="int32", Tidx="int32")
    cast = fragment.emit("Cast", [first], list(op.outputs), SrcT="int32", DstT=op.outputs[0].dtype, Truncate=False)
    fragment.held |= {hit: S(dim), found: S(dim), cast: B}
    fragment.outputs = (cast,)
    return fragment


@registry.register("ArgMax", "ArgMin", expand=_first_place)
def place_of_extreme(op: OpView) -> list[Signature]:
    found, shape = reductions(op), op.inputs[0].shape
    dims = reduced_dims(op, 1, op.inputs[0].rank)
    if not dims or not shape or 0 in shape or not real(op.inputs[0]):
        return found
    size = math.prod(op.outputs[0].shape or ()) * (width(op.inputs[0]) + 4)
    return [*found, Signature((S(dims[0]), B), (B,), expands=True, inner_bytes=size)]


@registry.register("TopKV2")
def top_k(op: OpView) -> list[Signature]:
    return [place(op, {0: S(dim)}, S(dim)) for dim in range(op.inputs[0].rank - 1)]


@registry.register("ApproxTopK")
def approximate_top_k(op: OpView) -> list[Signature]:
    dim = int(op.attrs.get("reduction_dimension", -1)) % max(op.inputs[0].rank, 1)
    return [place(op, {0: S(other)}, S(other)) for other in range(op.inputs[0].rank) if other != dim]


@registry.register("NthElement")
def nth_element(op: OpView) -> list[Signature]:
    return [place(op, {0: S(dim)}, S(dim)) for dim in range(op.inputs[0].rank - 1)]


@registry.register("IsotonicRegression")
def isotonic_regression(op: OpView) -> list[Signature]:
    """Rows -> rows that fall, and to which step each element belongs."""
    return [place(op, {0: S(0)}, S(0))]


def _count_above(op: OpView) -> Fragment:
    """A target is among the top k if fewer than k predictions are above its own, and all of the row are finite."""
    fragment = Fragment(op)
    (count, classes), kind = op.inputs[0].shape or (0, 0), op.inputs[1].dtype
    full, row, number = (count, classes), (count, 1), "int32"

    def flag(type: str, *inputs: int, shape: tuple[int, ...], **attrs: object) -> int:
        return int(fragment.emit(type, inputs, [TensorSpec(shape, "bool")], **attrs))

    def total(flags: int) -> int:
        """How many of each row are true."""
        spec = TensorSpec(full, number)
        ones = fragment.emit("Cast", [flags], [spec], SrcT="bool", DstT=number, Truncate=False)
        fragment.held |= {flags: S(1), ones: S(1)}
        return int(fragment.emit("Sum", [ones, one], [TensorSpec((count,), number)], T=number, Tidx="int32"))

    one, first, beyond = fragment.const(1, "int32"), fragment.const(0, kind), fragment.const(classes, kind)
    at_least = flag("GreaterEqual", 1, first, shape=(count,), T=kind)
    valid = flag("LogicalAnd", at_least, flag("Less", 1, beyond, shape=(count,), T=kind), shape=(count,))
    safe = fragment.emit("SelectV2", [valid, 1, first], [TensorSpec((count,), kind)], T=kind)
    column = fragment.emit("ExpandDims", [safe, one], [TensorSpec(row, kind)], T=kind, Tdim="int32")
    types = {"Tparams": op.inputs[0].dtype, "Tindices": kind, "Taxis": "int32"}
    spec = TensorSpec(row, op.inputs[0].dtype)
    own = fragment.emit("GatherV2", [0, column, one], [spec], batch_dims=1, **types)
    above = total(flag("Greater", 0, own, shape=full, T=spec.dtype))
    finite = total(flag("IsFinite", 0, shape=full, T=spec.dtype))
    limit = fragment.const(op.attrs["k"], "int32") if op.type == "InTopK" else 2
    if op.type == "InTopKV2" and kind != number:
        limit = fragment.emit("Cast", [2], [TensorSpec((), number)], SrcT=kind, DstT=number, Truncate=False)
    few = flag("Less", above, limit, shape=(count,), T=number)
    all_finite = flag("Equal", finite, fragment.const(classes, number), shape=(count,), T=number)
    known = flag("LogicalAnd", valid, all_finite, shape=(count,))
    result = flag("LogicalAnd", few, known, shape=(count,))
    fragment.held |= {few: B, all_finite: B, result: B}
    fragment.outputs = (result,)
    return fragment


@registry.register("InTopK", "InTopKV2", expand=_count_above)
def in_top_k(op: OpView) -> list[Signature]:
    """predictions [N, C], targets [N] -> [N]"""
    found = [place(op, {0: S(0), 1: S(0)}, S(0))]
    shape = op.inputs[0].shape
    if not shape or 0 in shape:
        return found
    rest = (B,) * (len(op.inputs) - 1)
    # The target's prediction and two counts of each row.
    return [*found, Signature((S(1), *rest), (B,), expands=True, inner_bytes=12 * shape[0])]
