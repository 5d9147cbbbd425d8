"""Ops that take, or fill in, a range of some dims and leave the others alone: slices, pads, rolls, reversals."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from whaleish.rules.movement import (
    LINEAR,
    carried,
    dims_but,
    empty_as_zeros,
    equal_dims,
    local_shape_operand,
    partly,
    place,
    when_divided,
)
from whaleish.rules.rule import Lowering, OpView, Ref, Signature, registry
from whaleish.sbp import S


@registry.register("Slice", lower=local_shape_operand(2))
def slice_(op: OpView) -> list[Signature]:
    """A dim taken whole begins at 0, so only the sizes are local."""
    return carried(op, ((dim, dim) for dim in equal_dims(op)), LINEAR)


class Span(NamedTuple):
    """What a strided slice does with one dim.

    Attributes:
      sparse: index into begin, end and strides; None where an ellipsis covers the dim.
      source, target: the dim of the sliced tensor and of the slice; None where there is none.
      whole: the dim is taken as it is.
    """

    sparse: int | None
    source: int | None
    target: int | None
    whole: bool


def spans(op: OpView, shape: tuple[int, ...], begin: int) -> list[Span]:
    """Reads the masks of a strided slice of a tensor of `shape`, whose begin, end and strides are the inputs from
    number `begin` on."""
    first, last, strides = op.constants[begin : begin + 3]
    operand = op.inputs[begin].shape
    if operand is None:
        return []
    count = operand[0]

    def has(mask: str, index: int) -> bool:
        return bool(int(op.attrs.get(f"{mask}_mask") or 0) >> index & 1)

    def is_whole(index: int, n: int) -> bool:
        if strides is None or int(strides[index]) != 1:
            return False
        at_start = has("begin", index) or (first is not None and _position(first[index], n) <= 0)
        return at_start and (has("end", index) or (last is not None and _position(last[index], n) >= n))

    ellipsis = next((index for index in range(count) if has("ellipsis", index)), count)
    named = sum(not has("new_axis", index) for index in range(count) if index != ellipsis)
    found: list[Span] = []
    source = target = 0
    for index in range(max(count, ellipsis + 1)):
        if index == ellipsis:
            for _ in range(len(shape) - named):
                found.append(Span(None, source, target, True))
                source, target = source + 1, target + 1
        elif has("new_axis", index):
            found.append(Span(index, None, target, False))
            target += 1
        elif has("shrink_axis", index):
            found.append(Span(index, source, None, False))
            source += 1
        else:
            found.append(Span(index, source, target, is_whole(index, shape[source])))
            source, target = source + 1, target + 1
    return found


def _position(value: np.generic, length: int) -> int:
    return int(value) + length if int(value) < 0 else int(value)


_BEGIN = {"StridedSlice": 1, "StridedSliceGrad": 1, "TensorStridedSliceUpdate": 1}


def _sliced_shape(op: OpView) -> tuple[int, ...] | None:
    return op.outputs[0].shape if op.type == "StridedSliceGrad" else op.inputs[0].shape


def _whole_spans(op: OpView) -> list[tuple[int, int, int | None]]:
    """(source, target, sparse) of each dim that is taken whole."""
    shape = _sliced_shape(op)
    found = spans(op, shape, 1) if shape is not None else []
    return [(s.source, s.target, s.sparse) for s in found if s.whole and s.source is not None and s.target is not None]


@when_divided
def _take_whole(low: Lowering) -> list[Ref]:
    """The masks say that a dim is taken whole, however long it is here."""
    bits = sum(1 << sparse for _, _, sparse in _whole_spans(low.op) if sparse is not None)
    masks = {name: int(low.op.attrs.get(name) or 0) | bits for name in ("begin_mask", "end_mask")}
    shapes = {0: low.const(low.shape_out(0), low.op.inputs[0].dtype)} if low.op.type == "StridedSliceGrad" else {}
    return low.same(shapes, **masks)


@registry.register("StridedSlice", lower=_take_whole)
def strided_slice(op: OpView) -> list[Signature]:
    return carried(op, ((source, target) for source, target, _ in _whole_spans(op)), LINEAR)


@registry.register("StridedSliceGrad", lower=_take_whole)
def strided_slice_grad(op: OpView) -> list[Signature]:
    return carried(op, ((target, source) for source, target, _ in _whole_spans(op)), LINEAR, data=4)


@registry.register("TensorStridedSliceUpdate", lower=_take_whole)
def strided_slice_update(op: OpView) -> list[Signature]:
    found = [place(op, {0: S(source), 4: S(target)}, S(source)) for source, target, _ in _whole_spans(op)]
    return found + partly(op, (0, 4), LINEAR)


@when_divided
def _assign_whole(low: Lowering) -> list[Ref]:
    """An empty part has nothing to assign to, which the kernel refuses."""
    return [] if 0 in low.shape_in(0) or 0 in low.shape_in(4) else _take_whole(low)


@registry.register("ResourceStridedSliceAssign", lower=_assign_whole)
def strided_slice_assign(op: OpView) -> list[Signature]:
    """A variable, begin, end and strides, and what is assigned."""
    return [place(op, {0: S(source), 4: S(target)}) for source, target, _ in _whole_spans(op)]


@registry.register("MirrorPad", "MirrorPadGrad", lower=empty_as_zeros())
def mirror_pad(op: OpView) -> list[Signature]:
    return carried(op, ((dim, dim) for dim in equal_dims(op)), LINEAR)


@registry.register("Pad")
def pad(op: OpView) -> list[Signature]:
    return carried(op, ((dim, dim) for dim in equal_dims(op)), LINEAR)


@registry.register("PadV2")
def pad_with(op: OpView) -> list[Signature]:
    value = op.constants[2]
    is_zero = value is not None and not value.any()
    return carried(op, ((dim, dim) for dim in equal_dims(op)), LINEAR if is_zero else ())


@registry.register("ReverseV2")
def reverse(op: OpView) -> list[Signature]:
    return _elsewhere(op, 1)


@registry.register("Reverse", lower=empty_as_zeros())
def reverse_flagged(op: OpView) -> list[Signature]:
    """Old form: a flag for each dim."""
    flags = op.constants[1]
    dims = [] if flags is None else [dim for dim, flag in enumerate(flags.tolist()) if not flag]
    return carried(op, ((dim, dim) for dim in dims), LINEAR)


@registry.register("ReverseSequence")
def reverse_each(op: OpView) -> list[Signature]:
    """The first so many elements along one dim, and how many for each index of another."""
    along, batch = int(op.attrs["seq_dim"]), int(op.attrs.get("batch_dim") or 0)
    dims = dims_but(op.inputs[0].rank, [along])
    found = [place(op, {0: S(dim), 1: S(0)} if dim == batch else {0: S(dim)}, S(dim)) for dim in dims]
    return found + partly(op, [0], LINEAR)


@registry.register("Roll")
def roll(op: OpView) -> list[Signature]:
    return _elsewhere(op, 2)


def _elsewhere(op: OpView, operand: int) -> list[Signature]:
    """Dims that a constant operand does not name."""
    named = op.constants[operand]
    rank = op.inputs[0].rank
    dims = [] if named is None else dims_but(rank, map(int, named.reshape(-1)))
    return carried(op, ((dim, dim) for dim in dims), LINEAR)


def _block_dims(op: OpView) -> tuple[int, ...] | None:
    return {"NHWC": (1, 2), "NCHW": (2, 3)}.get(str(op.attrs.get("data_format", "NHWC")))


@registry.register("SpaceToDepth", "DepthToSpace")
def blocks_and_depth(op: OpView) -> list[Signature]:
    """Batch; and height or width, cut between blocks."""
    spatial, block = _block_dims(op), int(op.attrs["block_size"])
    if spatial is None or op.inputs[0].rank != 4:
        return []
    found = carried(op, [(0, 0)], LINEAR)
    for dim in spatial:
        fine, coarse = S(dim, block), S(dim)
        pair = (fine, coarse) if op.type == "SpaceToDepth" else (coarse, fine)
        found.append(place(op, {0: pair[0]}, pair[1]))
    return found


@registry.register("SpaceToBatch", "BatchToSpace", "SpaceToBatchND", "BatchToSpaceND")
def blocks_and_batch(op: OpView) -> list[Signature]:
    """Only dims after the spatial ones: the new batch interleaves blocks and samples, so that it has no split."""
    blocks = op.inputs[1].shape
    if blocks is None:
        return []
    spatial = blocks[0] if op.type.endswith("ND") else 2
    return carried(op, ((dim, dim) for dim in range(1 + spatial, op.inputs[0].rank)), LINEAR)
