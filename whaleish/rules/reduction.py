"""Reductions, and scans along one dim.

Along a dim that is kept, every op here may be split. Along a dim that is reduced, the layout of the output says how the
results of the parts are combined: by their sum, maximum or minimum.
"""

from __future__ import annotations

import math

from whaleish.rules.forms import FLOATS, reduced_dims
from whaleish.rules.rule import Fragment, Lowering, OpView, Ref, Signature, TensorSpec, registry
from whaleish.sbp import PMAX, PMIN, B, P, S, Sbp


def reductions(op: OpView, reduced: Sbp | None = None) -> list[Signature]:
    """Splits of each dim, given what a split of a reduced one makes of the output (None: not legal)."""
    rank = op.inputs[0].rank
    dims = reduced_dims(op, 1, rank)
    if dims is None:
        return []
    found = []
    for dim in range(rank):
        if dim not in dims:
            before = 0 if op.attrs.get("keep_dims") else sum(other < dim for other in dims)
            found.append(Signature((S(dim), B), (S(dim - before),)))
        elif reduced is not None:
            found.append(Signature((S(dim), B), (reduced,)))
    return found


@registry.register("Sum")
def total(op: OpView) -> list[Signature]:
    return [*reductions(op, P), Signature((P, B), (P,))]


def lower_mean(part: Lowering) -> list[Ref]:
    """The part's mean, weighted by its share of what is averaged; of nothing, a sum of zero in place of 0/0."""
    op, shape, local = part.op, part.op.inputs[0].shape or (), part.shape_in(0)
    dims = reduced_dims(op, 1, len(shape))
    # Without known axes only summands are taken in, and they are whole.
    count, own = (math.prod(s[dim] for dim in dims or ()) for s in (shape, local))
    if count == own:
        return part.same()
    dtype = op.inputs[0].dtype
    if not own:
        kept = {name: op.attrs[name] for name in ("Tidx", "keep_dims") if name in op.attrs}
        return [part.emit("Sum", [part.input(0), part.input(1)], T=dtype, **kept)]
    return [part.emit("Mul", [*part.same(), part.const(own / count, dtype)], T=dtype)]


@registry.register("Mean", lower=lower_mean)
def mean(op: OpView) -> list[Signature]:
    """Integers are divided with the remainder dropped, which is not linear."""
    if op.inputs[0].dtype not in FLOATS and not op.inputs[0].dtype.startswith("complex"):
        return reductions(op)
    return [*reductions(op, P), Signature((P, B), (P,))]


@registry.register("Max")
def highest(op: OpView) -> list[Signature]:
    return [*reductions(op, PMAX), Signature((PMAX, B), (PMAX,))]


@registry.register("Min")
def lowest(op: OpView) -> list[Signature]:
    return [*reductions(op, PMIN), Signature((PMIN, B), (PMIN,))]


@registry.register("Prod", "EuclideanNorm")
def kept_only(op: OpView) -> list[Signature]:
    return reductions(op)


def expand_logical(op: OpView) -> Fragment:
    """Any is the maximum, and All the minimum, of zeros and ones."""
    fragment = Fragment(op)
    before, after = (TensorSpec(spec.shape, "int32") for spec in (*op.inputs[:1], *op.outputs))
    numbers = fragment.emit("Cast", [0], [before], SrcT="bool", DstT="int32", Truncate=False)
    kept = {"keep_dims": op.attrs.get("keep_dims", False), "Tidx": op.inputs[1].dtype}
    extreme = fragment.emit("Max" if op.type == "Any" else "Min", [numbers, 1], [after], T="int32", **kept)
    cast = fragment.emit("Cast", [extreme], list(op.outputs), SrcT="int32", DstT="bool", Truncate=False)
    fragment.outputs = (cast,)
    return fragment


@registry.register("All", "Any", expand=expand_logical)
def logical(op: OpView) -> list[Signature]:
    """A bool is no number, so the parts' results are combined inside."""
    size = 4 * math.prod(op.outputs[0].shape or ())
    return [s._replace(expands=True, inner_bytes=size) if s.outputs == (B,) else s for s in reductions(op, B)]


@registry.register("ArgMax", "ArgMin")
def place_of_extreme(op: OpView) -> list[Signature]:
    """The place is counted along the reduced dim, which must be whole."""
    return reductions(op)


@registry.register("L2Loss")
def half_square(op: OpView) -> list[Signature]:
    """Half the sum of the squares of all elements."""
    return [Signature((split,), (P,)) for split in map(S, range(op.inputs[0].rank))]


@registry.register("Cumsum", "Cumprod", "CumulativeLogsumexp")
def scan(op: OpView) -> list[Signature]:
    """Along one dim; the others are independent of each other."""
    rank = op.inputs[0].rank
    dims = reduced_dims(op, 1, rank)
    found = [] if dims is None else [Signature((S(dim), B), (S(dim),)) for dim in range(rank) if dim not in dims]
    return found + ([Signature((P, B), (P,))] if op.type == "Cumsum" else [])
