"""Softmax and the cross entropies of logits, whose last dim may be split: then only numbers per row travel.

    logits [N, C], S(1) ── Max ── Pmax ═▶ B                    ═▶ an all-reduce of [N, 1]
           └──────────── Sub ◀────────────┘
                          Exp ── Sum ── P ═▶ B ── Log ────┐
                           └── RealDiv ◀───┘              Sub ── loss [N], P
                                  └── Sub ── backprop      │
    labels [N], B ── OneHot, S(1) ┘                        │
           └──────── GatherV2(logits) ── P ────────────────┘

No step takes logits whole, and each part makes the one-hot labels of its own classes only.
"""

from __future__ import annotations

import math

from whaleish.rules.forms import FLOATS
from whaleish.rules.movement import place
from whaleish.rules.rule import Fragment, OpView, Signature, TensorSpec, registry
from whaleish.sbp import B, P, S


class _Rows:
    """Ops on the rows of a tensor, in a fragment. Narrow floats are computed in float32."""

    def __init__(self, fragment: Fragment, spec: TensorSpec) -> None:
        self.fragment = fragment
        self.given = spec.dtype
        self.dtype = spec.dtype if FLOATS[spec.dtype] >= 4 else "float32"
        shape = spec.shape or ()
        self.full = TensorSpec(shape, self.dtype)
        self.row = TensorSpec((*shape[:-1], 1), self.dtype)
        self.last = fragment.const([len(shape) - 1], "int32")
        self.split = S(len(shape) - 1)

    def wide(self, value: int) -> int:
        return self._cast(value, self.given, self.dtype)

    def narrow(self, value: int) -> int:
        return self._cast(value, self.dtype, self.given)

    def _cast(self, value: int, source: str, target: str) -> int:
        if source == target:
            return value
        spec = TensorSpec(self.fragment.specs[value].shape, target)
        return self.hold(self.fragment.emit("Cast", [value], [spec], SrcT=source, DstT=target))

    def hold(self, value: int) -> int:
        """Keeps a value split if it has the shape of the logits."""
        if self.fragment.specs[value].shape == self.full.shape:
            self.fragment.held[value] = self.split
        return value

    def map(self, type: str, *values: int) -> int:
        """An elementwise op; its result is a row of numbers if all its inputs are."""
        wide = any(self.fragment.specs[value] == self.full for value in values)
        return self.hold(self.fragment.emit(type, values, [self.full if wide else self.row], T=self.dtype))

    def log(self, total: int) -> int:
        """The logarithm of a sum, which has to be whole for that."""
        value = self.map("Log", total)
        self.fragment.held[value] = B
        return value

    def reduce(self, type: str, value: int) -> int:
        inputs = [value, self.last]
        return int(self.fragment.emit(type, inputs, [self.row], T=self.dtype, Tidx="int32", keep_dims=True))

    def flat(self, value: int) -> int:
        """[N, 1] as [N]."""
        shape = (self.row.shape or ())[:-1]
        dims = {"squeeze_dims": [len(shape)]}
        return int(self.fragment.emit("Squeeze", [value], [TensorSpec(shape, self.dtype)], T=self.dtype, **dims))

    def exponentials(self, logits: int) -> tuple[int, int, int, int]:
        """The largest logit of each row, logits less that, their exponentials, and the sum of those."""
        largest = self.reduce("Max", logits)
        shifted = self.map("Sub", logits, largest)
        powers = self.map("Exp", shifted)
        return largest, shifted, powers, self.reduce("Sum", powers)


def _split_rows(op: OpView, sums: int) -> list[Signature]:
    """Signatures that split the last dim of the logits, and of whatever else has their shape.

    Outputs with a number per row are made as sums, so these are offered too.

    Args:
      sums: how many numbers per row are all-reduced before such outputs.
    """
    shape, dtype = op.inputs[0].shape, op.inputs[0].dtype
    if not shape or dtype not in FLOATS or 0 in shape:
        return []
    last = S(len(shape) - 1)
    row_bytes = math.prod(shape[:-1]) * max(FLOATS[dtype], 4)
    inputs = tuple(last if spec.shape == shape else B for spec in op.inputs)
    found = []
    for row in (B, P):
        outputs = tuple(last if spec.shape == shape else row for spec in op.outputs)
        reduced = sums + outputs.count(B)
        found.append(Signature(inputs, outputs, expands=True, inner_bytes=reduced * row_bytes))
    return list(dict.fromkeys(found))


def _softmax_in_steps(op: OpView) -> Fragment:
    fragment = Fragment(op)
    rows = _Rows(fragment, op.inputs[0])
    _, shifted, powers, total = rows.exponentials(rows.wide(0))
    is_log = op.type == "LogSoftmax"
    result = rows.map("Sub", shifted, rows.log(total)) if is_log else rows.map("RealDiv", powers, total)
    fragment.outputs = (rows.narrow(result),)
    return fragment


@registry.register("Softmax", "LogSoftmax", expand=_softmax_in_steps)
def softmax(op: OpView) -> list[Signature]:
    found = [place(op, {0: S(dim)}, S(dim)) for dim in range(op.inputs[0].rank - 1)]
    return found + _split_rows(op, sums=2)


def _sparse_in_steps(op: OpView) -> Fragment:
    """The label's logit is looked up where it lies. One-hot labels are of the local classes only: as fast as a scatter
    into the local slice (measured on [64, 25000]: 2.9 and 3.0 ms with the softmax), and rows need no numbers."""
    fragment = Fragment(op)
    rows = _Rows(fragment, op.inputs[0])
    kind = op.inputs[1].dtype
    count, classes = op.inputs[0].shape or (0, 0)
    logits = rows.wide(0)
    largest, _, powers, total = rows.exponentials(logits)
    dim = fragment.const(1, "int32")
    column = fragment.emit("ExpandDims", [1, dim], [TensorSpec((count, 1), kind)], T=kind, Tdim="int32")
    types = {"Tparams": rows.dtype, "Tindices": kind, "Taxis": "int32"}
    own = fragment.emit("GatherV2", [logits, column, dim], [rows.row], batch_dims=1, **types)
    loss = rows.map("Sub", rows.log(total), rows.map("Sub", own, largest))
    values = [fragment.const(classes, "int32"), fragment.const(1, rows.dtype), fragment.const(0, rows.dtype)]
    hot = rows.hold(fragment.emit("OneHot", [1, *values], [rows.full], axis=-1, T=rows.dtype, TI=kind))
    gradient = rows.map("Sub", rows.map("RealDiv", powers, total), hot)
    fragment.outputs = (rows.narrow(rows.flat(loss)), rows.narrow(gradient))
    return fragment


@registry.register("SparseSoftmaxCrossEntropyWithLogits", expand=_sparse_in_steps)
def sparse_cross_entropy(op: OpView) -> list[Signature]:
    """features [N, C], labels [N] -> loss [N], backprop [N, C]"""
    found = [place(op, {0: S(0), 1: S(0)}, S(0))]
    return found + _split_rows(op, sums=2)


def _dense_in_steps(op: OpView) -> Fragment:
    fragment = Fragment(op)
    rows = _Rows(fragment, op.inputs[0])
    logits, labels = rows.wide(0), rows.wide(1)
    _, shifted, powers, total = rows.exponentials(logits)
    gradient = rows.map("Sub", rows.map("RealDiv", powers, total), labels)
    surprise = rows.map("Sub", rows.log(total), shifted)
    loss = rows.reduce("Sum", rows.map("Mul", labels, surprise))
    fragment.outputs = (rows.narrow(rows.flat(loss)), rows.narrow(gradient))
    return fragment


@registry.register("SoftmaxCrossEntropyWithLogits", expand=_dense_in_steps)
def cross_entropy(op: OpView) -> list[Signature]:
    """features and labels, each [N, C], [1, C] or [N, 1] -> loss [N], backprop [N, C]"""
    count = (op.outputs[0].shape or (0,))[0]
    rows = {index: S(0) for index, spec in enumerate(op.inputs) if spec.shape and spec.shape[0] == count}
    found = [place(op, rows, S(0))]
    return found + (_split_rows(op, sums=2) if op.inputs[0] == op.inputs[1] else [])
