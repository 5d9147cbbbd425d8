"""Stateless random numbers: a part draws its slice of the logical tensor, bit for bit.

TensorFlow's generator is Philox: a counter makes each group of 4 numbers, so a slice that starts at flat element e is
drawn from the counter advanced by e/4 groups (measured on TensorFlow 2.21: uniform, normal and integer kernels; twice
the counter steps for numbers of 8 bytes; 256 for the truncated normal, which keeps some for rejected draws). A slice
that starts inside a group is drawn from the group's beginning, and the excess dropped:

    elements   0 1 2 3 | 4 5 6 7 | 8 9 10 11     a part holds 6..10: it draws 4..10 at counter + 1 and drops two

Only a split whose parts are contiguous, along the outermost dim that is longer than 1, is offered. Stateful ops
(RandomUniform, RandomStandardNormal...) have no rule: nothing tells one part what the others have drawn.
"""

from __future__ import annotations

import math
from typing import Any

from whaleish.rules.forms import constant_ints
from whaleish.rules.movement import empty_as_zeros, place, when_divided
from whaleish.rules.rule import Lowering, OpView, Ref, Signature, registry
from whaleish.sbp import S

GROUP = 4
_WIDE = frozenset({"float64", "int64", "uint64"})
_PHILOX, _AUTOMATIC = 1, 3
"""TensorFlow's numbers for the algorithms; automatic is Philox, except in what XLA compiles for TPUs."""


def counter_steps(type: str, dtype: str) -> int:
    """By how much the counter advances for each group of 4 numbers."""
    if type.startswith("StatelessTruncatedNormal"):
        return 256
    return 2 if dtype in _WIDE else 1


def _outer_splits(op: OpView) -> list[Signature]:
    """Dims outside of which there is only one element."""
    shape = op.outputs[0].shape or ()
    return [place(op, {}, S(dim)) for dim in range(len(shape)) if math.prod(shape[:dim]) == 1 and 0 not in shape]


def _draw(
    low: Lowering, type: str, key: Ref, counter: Ref, algorithm: Ref, limits: list[Ref], **attrs: Any
) -> list[Ref]:
    """This part's slice, drawn by the op `type` that takes a key and a counter."""
    whole, dtype = low.op.outputs[0].shape or (), low.op.outputs[0].dtype
    local = low.shape_out(0)
    strides = [math.prod(whole[dim + 1 :]) for dim in range(len(whole))]
    first = sum(start * stride for start, stride in zip(low.start_out(0), strides, strict=True))
    groups, excess = divmod(first, GROUP) if 0 not in local else (0, 0)
    if groups:
        counter = _advanced(low, counter, groups * counter_steps(type, dtype))
    shape = [math.prod(local) + excess] if excess else list(local)
    drawn = low.emit(type, [low.const(shape, "int32"), key, counter, algorithm, *limits], Tshape="int32", **attrs)
    if not excess:
        return [drawn]
    kept = low.emit(
        "Slice", [drawn, low.const([excess], "int32"), low.const([math.prod(local)], "int32")], T=dtype, Index="int32"
    )
    return [low.emit("Reshape", [kept, low.const(list(local), "int32")], T=dtype, Tshape="int32")]


def _advanced(low: Lowering, counter: Ref, steps: int) -> Ref:
    """The counter, 128 bits as two uint64 with the low half first, plus a number of steps."""
    moved = low.emit("AddV2", [counter, low.const([steps, 0], "uint64")], T="uint64")
    carry = low.emit("Cast", [low.emit("Less", [moved, counter], T="uint64")], SrcT="bool", DstT="uint64")
    shift = [low.const([1], "int32"), low.const([0], "int32")]
    return low.emit(
        "AddV2", [moved, low.emit("Roll", [carry, *shift], T="uint64", Tshift="int32", Taxis="int32")], T="uint64"
    )


def _is_whole(low: Lowering) -> bool:
    return low.shape_out(0) == low.op.outputs[0].shape


def _draw_counted(low: Lowering) -> list[Ref]:
    if not any(s.is_split for s in low.layout_out(0)) or _is_whole(low):
        return low.same()
    attrs = {name: value for name, value in low.op.attrs.items() if name in ("dtype",)}
    limits = [low.input(index) for index in range(4, len(low.op.inputs))]
    return _draw(low, low.op.type, low.input(1), low.input(2), low.input(3), limits, **attrs)


@registry.register(
    "StatelessRandomUniformV2",
    "StatelessRandomNormalV2",
    "StatelessTruncatedNormalV2",
    "StatelessRandomUniformIntV2",
    "StatelessRandomUniformFullIntV2",
    lower=_draw_counted,
)
def counted(op: OpView) -> list[Signature]:
    """Inputs: shape, key, counter, algorithm, and limits of integers."""
    known = constant_ints(op, 3)
    return _outer_splits(op) if known and known[0] in (_PHILOX, _AUTOMATIC) else []


def _draw_seeded(low: Lowering) -> list[Ref]:
    """The older ops draw what the newer do from the key and the counter that the seed gives (measured)."""
    if not any(s.is_split for s in low.layout_out(0)) or _is_whole(low):
        return low.same()
    key, counter = low.emit("StatelessRandomGetKeyCounter", [low.input(1)], 2, Tseed=low.op.inputs[1].dtype)
    limits = [low.input(index) for index in range(2, len(low.op.inputs))]
    attrs = {"dtype": low.op.outputs[0].dtype}
    return _draw(low, low.op.type + "V2", key, counter, low.const(_PHILOX, "int32"), limits, **attrs)


@registry.register(
    "StatelessRandomUniform",
    "StatelessRandomNormal",
    "StatelessTruncatedNormal",
    "StatelessRandomUniformInt",
    "StatelessRandomUniformFullInt",
    lower=_draw_seeded,
)
def seeded(op: OpView) -> list[Signature]:
    """Inputs: shape, seed, and limits of integers."""
    return _outer_splits(op)


@when_divided
def _later_points(low: Lowering) -> list[Ref]:
    """A point is found from its number alone, so a part skips those of the parts before it."""
    count, first = low.shape_out(0)[0], low.start_out(0)[0]
    skipped = low.emit("AddV2", [low.input(2), low.const(first, "int32")], T="int32")
    return low.same({1: low.const(count, "int32"), 2: skipped})


@registry.register("SobolSample", lower=empty_as_zeros(_later_points))
def sobol_points(op: OpView) -> list[Signature]:
    """dims, how many, how many to skip -> [points, dims]"""
    return [place(op, {}, S(0))]


@registry.register("RandomIndexShuffle", lower=empty_as_zeros())
def shuffled_places(op: OpView) -> list[Signature]:
    """Where each index goes in a shuffle that a seed names, and is computed from the index alone."""
    return [place(op, {0: S(0)}, S(0))] if op.inputs[0].rank == 1 and op.inputs[1].rank == 1 else []
