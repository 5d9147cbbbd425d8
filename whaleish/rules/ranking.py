"""Which is the largest: arg-reductions, top-k, and whether a target is among the top.

Where the classes are split, only numbers per row travel, as in the losses: the largest value, the first place that has
it; a target's value, how many are above it.
"""

from __future__ import annotations

import math

import numpy as np

from whaleish.rules.blocks import Blocks, block_length
from whaleish.rules.forms import constant_ints, real, reduced_dims, width
from whaleish.rules.movement import empty_as_zeros, place
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


def _top_of_blocks(op: OpView) -> tuple[int, int] | None:
    """The length of the blocks that rows fall into, and how many of each are looked at; None where most would be."""
    shape, k = op.inputs[0].shape, constant_ints(op, 1)
    unit = block_length(shape[-1]) if shape and 0 not in shape else None
    if unit is None or not k or 2 * k[0] > unit:
        return None
    return unit, k[0]


def _best_of_best(op: OpView) -> Fragment:
    """The top k of each block, then the top k of those. Blocks are in order, so of equals the first comes first."""
    found = _top_of_blocks(op)
    if found is None:
        raise ValueError(f"rows of {op.inputs[0]} do not fall into blocks much longer than k")
    unit, k = found
    last = op.inputs[0].rank - 1
    blocks = Blocks(op, last, unit)
    fragment, rows, count = blocks.fragment, blocks.shape[:last], blocks.shape[last]
    kinds = {"T": blocks.dtype, "Tk": op.inputs[1].dtype, "index_type": "int32"}

    def specs(shape: tuple[int, ...]) -> list[TensorSpec]:
        return [TensorSpec(shape, blocks.dtype), TensorSpec(shape, "int32")]

    values, places = fragment.emit("TopKV2", [blocks.input, 1], specs((*rows, count, k)), sorted=True, **kinds)
    first = fragment.const(np.arange(count)[:, None] * unit, "int32")
    places = fragment.emit("AddV2", [places, first], [TensorSpec((*rows, count, k), "int32")], T="int32")
    flat = blocks.const(*rows, count * k)
    candidates, of_candidates = (
        fragment.emit("Reshape", [value, flat], [TensorSpec((*rows, count * k), kind)], T=kind, Tshape="int32")
        for value, kind in ((values, blocks.dtype), (places, "int32"))
    )
    best, which = fragment.emit("TopKV2", [candidates, 1], specs((*rows, k)), sorted=op.attrs["sorted"], **kinds)
    types = {"Tparams": "int32", "Tindices": "int32", "Taxis": "int32"}
    operands = [of_candidates, which, blocks.scalar(last)]
    found_at = fragment.emit("GatherV2", operands, [TensorSpec((*rows, k), "int32")], batch_dims=last, **types)
    kind = op.outputs[1].dtype
    cast = fragment.emit("Cast", [found_at], [op.outputs[1]], SrcT="int32", DstT=kind, Truncate=False)
    fragment.held |= dict.fromkeys((values, places, candidates, of_candidates), S(last))
    fragment.held |= dict.fromkeys((best, which, cast), B)
    fragment.outputs = (best, cast)
    return fragment


@registry.register("TopKV2", expand=_best_of_best)
def top_k(op: OpView) -> list[Signature]:
    found = [place(op, {0: S(dim)}, S(dim)) for dim in range(op.inputs[0].rank - 1)]
    if blocks := _top_of_blocks(op):
        unit, k = blocks
        *rows, length = op.inputs[0].shape or ()
        # Values are gathered, which sends half of an all-reduce; places are summed.
        size = math.prod(rows) * (length // unit * k * width(op.inputs[0]) // 2 + 4 * k)
        inputs = (S(len(rows), unit), B)
        found.append(Signature(inputs, (B, B), expands=True, inner_bytes=size))
    return found


@registry.register("ApproxTopK")
def approximate_top_k(op: OpView) -> list[Signature]:
    dim = int(op.attrs.get("reduction_dimension", -1)) % max(op.inputs[0].rank, 1)
    return [place(op, {0: S(other)}, S(other)) for other in range(op.inputs[0].rank) if other != dim]


@registry.register("NthElement")
def nth_element(op: OpView) -> list[Signature]:
    return [place(op, {0: S(dim)}, S(dim)) for dim in range(op.inputs[0].rank - 1)]


@registry.register("NearestNeighbors", lower=empty_as_zeros())
def nearest(op: OpView) -> list[Signature]:
    """Points [N, D], centers [M, D], k -> the k nearest centers of each point, and how far."""
    return [place(op, {0: S(0)}, S(0))]


@registry.register("IsotonicRegression")
def isotonic_regression(op: OpView) -> list[Signature]:
    """Rows -> rows that fall, and to which step each element belongs."""
    return [place(op, {0: S(0)}, S(0))]


def _count_above(op: OpView) -> Fragment:
    """A target is among the top k if it is a class, fewer than k predictions are above its own, and all are finite."""
    fragment = Fragment(op)
    (count, classes), kind = op.inputs[0].shape or (0, 0), op.inputs[1].dtype
    full, row = (count, classes), (count,)
    number, dtype = {"T": "int32"}, {"T": op.inputs[0].dtype}

    def emit(type: str, inputs: list[int], shape: tuple[int, ...], made: str = "bool", **attrs: object) -> int:
        """Adds an op. What has the shape of the predictions stays split, a number per row is whole."""
        value = int(fragment.emit(type, inputs, [TensorSpec(shape, made)], **attrs))
        fragment.held[value] = S(1) if shape == full else B
        return value

    def total(flags: int) -> int:
        """How many of each row are true."""
        ones = emit("Cast", [flags], full, "int32", SrcT="bool", DstT="int32", Truncate=False)
        return int(fragment.emit("Sum", [ones, one], [TensorSpec(row, "int32")], Tidx="int32", **number))

    one, first, beyond = fragment.const(1, "int32"), fragment.const(0, kind), fragment.const(classes, kind)
    from_first, to_last = emit("GreaterEqual", [1, first], row, T=kind), emit("Less", [1, beyond], row, T=kind)
    valid = emit("LogicalAnd", [from_first, to_last], row)
    safe = emit("SelectV2", [valid, 1, first], row, kind, T=kind)
    column = emit("ExpandDims", [safe, one], (count, 1), kind, T=kind, Tdim="int32")
    types = {"Tparams": op.inputs[0].dtype, "Tindices": kind, "Taxis": "int32"}
    spec = TensorSpec((count, 1), op.inputs[0].dtype)
    own = fragment.emit("GatherV2", [0, column, one], [spec], batch_dims=1, **types)
    above = total(emit("Greater", [0, own], full, **dtype))
    finite = total(emit("IsFinite", [0], full, **dtype))
    limit = fragment.const(op.attrs["k"], "int32") if op.type == "InTopK" else 2
    if op.type == "InTopKV2" and kind != "int32":
        limit = emit("Cast", [2], (), "int32", SrcT=kind, DstT="int32", Truncate=False)
    few = emit("Less", [above, limit], row, **number)
    all_finite = emit("Equal", [finite, fragment.const(classes, "int32")], row, **number)
    known = emit("LogicalAnd", [valid, all_finite], row)
    fragment.outputs = (emit("LogicalAnd", [few, known], row),)
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
