"""Look-ups: gather and embeddings, one-hot."""

from __future__ import annotations

from whaleish.rules.forms import constant_ints, numeric, zeros
from whaleish.rules.ids import keep_own, local_ids, local_places
from whaleish.rules.movement import COPYING, empty_as_zeros, partly, place, when_divided
from whaleish.rules.rule import Lowering, OpView, Ref, Signature, registry
from whaleish.sbp import P, S


def _axis_and_batch(op: OpView) -> tuple[int, int] | None:
    """The dim of the table that ids name, and how many leading dims table and ids share."""
    batch = int(op.attrs.get("batch_dims") or 0)
    batch = batch + op.inputs[1].rank if batch < 0 else batch
    if op.type == "ResourceGather":
        return batch, batch
    if op.type == "Gather":
        return 0, 0
    axis = constant_ints(op, 2)
    return None if axis is None else (axis[0] % max(op.inputs[0].rank, 1), batch)


def _gather_own(low: Lowering) -> list[Ref]:
    """Where the table is split along the dim that ids name: this part's rows, zero for the rest."""
    table, ids, out = low.op.inputs[0], low.op.inputs[1], low.op.outputs[0]
    found = _axis_and_batch(low.op)
    if found is None or table.shape is None or not any(s.is_split and s.dim == found[0] for s in low.layout_in(0)):
        return low.same()
    axis, batch = found
    count = low.shape_in(0)[axis]
    if count == 0:
        return [zeros(low, 0)]
    safe, own = local_ids(low, low.input(1), ids.dtype, low.start_in(0)[axis], count, table.shape[axis], foreign=0)
    rows = low.same({1: safe})[0]
    named = low.shape_in(1)
    shape = (*named[:batch], *(1,) * (axis - batch), *named[batch:], *(1,) * (table.rank - axis - 1))
    return [keep_own(low, rows, out.dtype, own, shape)]


@registry.register("Gather", "GatherV2", "ResourceGather", lower=empty_as_zeros(_gather_own))
def gather(op: OpView) -> list[Signature]:
    """out = table[:axis] + ids[batch:] + table[axis + 1:]"""
    found = _axis_and_batch(op)
    table, ids = op.inputs[0], op.inputs[1]
    if found is None or table.shape is None:
        return []
    axis, batch = found
    signatures = [place(op, {0: S(dim), 1: S(dim)}, S(dim)) for dim in range(batch)]
    signatures += [place(op, {1: S(dim)}, S(axis + dim - batch)) for dim in range(batch, ids.rank)]
    signatures += [place(op, {0: S(dim)}, S(dim)) for dim in range(batch, axis)]
    signatures += [place(op, {0: S(dim)}, S(dim + ids.rank - batch - 1)) for dim in range(axis + 1, table.rank)]
    if numeric(op.outputs[0]):
        signatures.append(place(op, {0: S(axis)}, P))
    return signatures + partly(op, [0], COPYING)


def depth_of(op: OpView, index: int) -> int:
    """How many dims each row of an operand of places names."""
    shape = op.inputs[index].shape
    return shape[-1] if shape else 0


def _gather_own_places(low: Lowering) -> list[Ref]:
    table, ids, out = low.op.inputs[0], low.op.inputs[1], low.op.outputs[0]
    depth = depth_of(low.op, 1)
    if table.shape is None or not any(s.is_split and s.dim < depth for s in low.layout_in(0)):
        return low.same()
    counts = low.shape_in(0)[:depth]
    if 0 in counts:
        return [zeros(low, 0)]
    starts, totals = low.start_in(0)[:depth], table.shape[:depth]
    safe, own = local_places(low, low.input(1), ids.dtype, starts, counts, totals)
    shape = (*low.shape_in(1)[:-1], *(1,) * (table.rank - depth))
    return [keep_own(low, low.same({1: safe})[0], out.dtype, own, shape)]


@registry.register("GatherNd", "ResourceGatherNd", lower=empty_as_zeros(_gather_own_places))
def gather_places(op: OpView) -> list[Signature]:
    """out = ids[:-1] + table[depth:]"""
    table, ids = op.inputs[0], op.inputs[1]
    depth = depth_of(op, 1)
    found = [place(op, {1: S(dim)}, S(dim)) for dim in range(ids.rank - 1)]
    found += [place(op, {0: S(dim)}, S(dim - depth + ids.rank - 1)) for dim in range(depth, table.rank)]
    if numeric(op.outputs[0]):
        found += [place(op, {0: S(dim)}, P) for dim in range(depth)]
    return found + partly(op, [0], COPYING)


def _one_hot_dim(op: OpView) -> int:
    axis = int(op.attrs.get("axis", -1))
    return axis if axis >= 0 else op.inputs[0].rank


@when_divided
def _one_hot_locally(low: Lowering) -> list[Ref]:
    """Ids of other parts' classes fall outside the local depth, where the op writes `off`."""
    axis = _one_hot_dim(low.op)
    if not any(s.is_split and s.dim == axis for s in low.layout_out(0)):
        return low.same()
    ids, dtype = low.input(0), low.op.inputs[0].dtype
    if dtype in ("uint8", "int8"):  # A difference may not fit.
        ids, dtype = low.emit("Cast", [ids], SrcT=dtype, DstT="int32"), "int32"
    ids = low.emit("Sub", [ids, low.const(low.start_out(0)[axis], dtype)], T=dtype)
    return low.same({0: ids, 1: low.const(low.shape_out(0)[axis], "int32")}, TI=dtype)


@registry.register("OneHot", lower=_one_hot_locally)
def one_hot(op: OpView) -> list[Signature]:
    axis = _one_hot_dim(op)
    found = [place(op, {0: S(dim)}, S(dim + (dim >= axis))) for dim in range(op.inputs[0].rank)]
    return [*found, place(op, {}, S(axis))]


@registry.register("UnravelIndex", lower=empty_as_zeros())
def unravel(op: OpView) -> list[Signature]:
    """Flat places [N] in a tensor of the given dims -> [dims, N]."""
    return [place(op, {0: S(0)}, S(1))] if op.inputs[0].rank == 1 else []
