"""Reductions.

Along a dim that is kept, every op here may be split. Along a dim that is reduced, the layout of the output says how the
results of the parts are combined: by their sum, maximum or minimum.
"""

from __future__ import annotations

import math

from whaleish.rules.blocks import Blocks, block_length
from whaleish.rules.forms import FLOATS, reduced_dims, width
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


def _blockwise(op: OpView) -> tuple[int, int] | None:
    """The outermost reduced dim that falls into blocks, and their length."""
    shape, dims = op.inputs[0].shape or (), reduced_dims(op, 1, op.inputs[0].rank)
    found = [] if 0 in shape else [(dim, unit) for dim in dims or () if (unit := block_length(shape[dim]))]
    return found[0] if found else None


def _product_of_blocks(op: OpView) -> Fragment:
    """Each block's product, then that of the blocks: parts have no product of their own among the layouts."""
    found = _blockwise(op)
    dims = reduced_dims(op, 1, op.inputs[0].rank)
    if found is None or dims is None:
        raise ValueError(f"no reduced dim of {op.inputs} falls into blocks")
    dim, _ = found
    blocks = Blocks(op, *found)
    inner = [d + (d >= dim) for d in dims]
    kept = tuple(n for d, n in enumerate(blocks.shape) if d not in inner)
    at = sum(d not in inner for d in range(dim))
    each = blocks.emit("Prod", [blocks.input, blocks.const(*inner)], kept, Tidx="int32", keep_dims=False)
    rest = (*kept[:at], *kept[at + 1 :])
    product = blocks.emit("Prod", [each, blocks.const(at)], rest, Tidx="int32", keep_dims=False)
    result = blocks.reshape(product, op.outputs[0].shape or ())
    blocks.fragment.held |= {each: S(at), product: B, result: B}
    blocks.fragment.outputs = (result,)
    return blocks.fragment


@registry.register("Prod", expand=_product_of_blocks)
def product(op: OpView) -> list[Signature]:
    found = reductions(op)
    if blocks := _blockwise(op):
        dim, unit = blocks
        count = (op.inputs[0].shape or ())[dim] // unit
        # A gather sends half as much as the all-reduce by which inner bytes are charged.
        size = math.prod(op.outputs[0].shape or ()) * count * width(op.inputs[0]) // 2
        found.append(Signature((S(dim, unit), B), (B,), expands=True, inner_bytes=size))
    return found


def _root_of_squares(op: OpView) -> Fragment:
    fragment = Fragment(op)
    dtype = {"T": op.inputs[0].dtype}
    squares = fragment.emit("Square", [0], list(op.inputs[:1]), **dtype)
    kept = {"keep_dims": op.attrs.get("keep_dims", False), "Tidx": op.inputs[1].dtype}
    total = fragment.emit("Sum", [squares, 1], list(op.outputs), **dtype, **kept)
    fragment.outputs = (fragment.emit("Sqrt", [total], list(op.outputs), **dtype),)
    fragment.held[fragment.outputs[0]] = B
    return fragment


@registry.register("EuclideanNorm", expand=_root_of_squares)
def norm(op: OpView) -> list[Signature]:
    if op.inputs[0].dtype not in FLOATS:
        return reductions(op)
    size = math.prod(op.outputs[0].shape or ()) * width(op.inputs[0])
    return [s._replace(expands=True, inner_bytes=size) if s.outputs == (B,) else s for s in reductions(op, B)]


def expand_logical(op: OpView) -> Fragment:
    """Any is the maximum, and All the minimum, of zeros and ones."""
    fragment = Fragment(op)
    before, after = (TensorSpec(spec.shape, "int32") for spec in (*op.inputs[:1], *op.outputs))
    numbers = fragment.emit("Cast", [0], [before], SrcT="bool", DstT="int32", Truncate=False)
    kept = {"keep_dims": op.attrs.get("keep_dims", False), "Tidx": op.inputs[1].dtype}
    extreme = fragment.emit("Max" if op.type == "Any" else "Min", [numbers, 1], [after], T="int32", **kept)
    cast = fragment.emit("Cast", [extreme], list(op.outputs), SrcT="int32", DstT="bool", Truncate=False)
    fragment.outputs = (cast,)
    fragment.held[cast] = B
    return fragment


@registry.register("All", "Any", expand=expand_logical)
def logical(op: OpView) -> list[Signature]:
    """A bool is no number, so the parts' results are combined inside."""
    size = 4 * math.prod(op.outputs[0].shape or ())
    return [s._replace(expands=True, inner_bytes=size) if s.outputs == (B,) else s for s in reductions(op, B)]


@registry.register("L2Loss")
def half_square(op: OpView) -> list[Signature]:
    """Half the sum of the squares of all elements."""
    return [Signature((split,), (P,)) for split in map(S, range(op.inputs[0].rank))]
