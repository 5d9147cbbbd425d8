"""Writing rows: scatters into zeros and into tensors."""

from __future__ import annotations

from whaleish.rules.forms import numeric, real
from whaleish.rules.gather import depth_of
from whaleish.rules.ids import keep_own, local_places
from whaleish.rules.movement import empty_as_zeros, local_shape_operand, partly, place
from whaleish.rules.neutral import neutral
from whaleish.rules.rule import Lowering, OpView, Ref, Signature, registry
from whaleish.sbp import PMAX, PMIN, P, S, Sbp


@registry.register("ScatterNd", lower=empty_as_zeros(local_shape_operand(2)))
def scatter(op: OpView) -> list[Signature]:
    """ids [..., depth] and updates ids[:-1] + out[depth:]: each part scatters its updates, into a sum."""
    depth, named = depth_of(op, 0), op.inputs[0].rank - 1
    found = [place(op, {1: S(named + dim - depth)}, S(dim)) for dim in range(depth, op.outputs[0].rank)]
    if numeric(op.outputs[0]):
        found += [place(op, {0: S(dim), 1: S(dim)}, P) for dim in range(named)]
    return found + partly(op, [1], [P])


def _trailing(op: OpView) -> list[Signature]:
    """Dims of the tensor that ids do not name."""
    depth, named = depth_of(op, 1), op.inputs[1].rank - 1
    dims = range(depth, op.inputs[0].rank)
    return [place(op, {0: S(dim), 2: S(named + dim - depth)}, S(dim)) for dim in dims]


@registry.register("TensorScatterUpdate", lower=empty_as_zeros())
def scatter_update(op: OpView) -> list[Signature]:
    return _trailing(op)


def _take_own(low: Lowering) -> list[Ref]:
    """Where the tensor is split along a dim that ids name: takes in this part's updates, and what changes nothing for
    the rest."""
    tensor, ids = low.op.inputs[0], low.op.inputs[1]
    depth = depth_of(low.op, 1)
    if tensor.shape is None or not any(s.is_split and s.dim < depth for s in low.layout_in(0)):
        return low.same()
    counts = low.shape_in(0)[:depth]
    places, own = local_places(low, low.input(1), ids.dtype, low.start_in(0)[:depth], counts, tensor.shape[:depth])
    shape = (*low.shape_in(1)[:-1], *(1,) * (tensor.rank - depth))
    updates = keep_own(low, low.input(2), tensor.dtype, own, shape, neutral(low.op.type, tensor.dtype))
    return low.same({1: places, 2: updates})


def _named(op: OpView) -> list[Signature]:
    """Dims of the tensor that ids name."""
    return [place(op, {0: S(dim)}, S(dim)) for dim in range(depth_of(op, 1))]


def _shared(op: OpView, kind: Sbp) -> list[Signature]:
    """Each part takes in some of the updates, or its own candidate or summand of each."""
    dims = range(op.inputs[1].rank - 1)
    return [place(op, {0: kind, 1: S(dim), 2: S(dim)}, kind) for dim in dims] + partly(op, [0, 2], [kind])


@registry.register("TensorScatterMax", "TensorScatterMin", lower=empty_as_zeros(_take_own))
def scatter_extreme(op: OpView) -> list[Signature]:
    found = _trailing(op) + _named(op)
    return found + (_shared(op, PMAX if op.type.endswith("Max") else PMIN) if real(op.inputs[0]) else [])


@registry.register("InplaceAdd", "InplaceSub", "InplaceUpdate")
def rows_in_place(op: OpView) -> list[Signature]:
    """A tensor, ids of its rows, and as many rows."""
    found = [place(op, {0: S(dim), 2: S(dim)}, S(dim)) for dim in range(1, op.inputs[0].rank)]
    return found + partly(op, [0, 2], [P])


@registry.register("TensorScatterAdd", "TensorScatterSub", "ScatterNdNonAliasingAdd", lower=empty_as_zeros(_take_own))
def scatter_add(op: OpView) -> list[Signature]:
    found = _trailing(op) + _named(op)
    return found + (_shared(op, P) if numeric(op.inputs[0]) else [])
