"""Means under `local_statistics()`: each part takes that of its own batch, and so does the gradient.

Capture writes these two types in place of TensorFlow's ops; no kernel has their names, so they are always lowered.
"""

from __future__ import annotations

from math import prod

from whaleish.rules.reduction import reductions
from whaleish.rules.rule import Lowering, OpView, Ref, Signature, registry
from whaleish.sbp import L, S

LOCAL_MEAN = "LocalMean"
LOCAL_MEAN_GRADIENT = "LocalMeanGradient"


def _own_mean(part: Lowering) -> list[Ref]:
    attrs = {name: part.op.attrs[name] for name in ("T", "Tidx", "keep_dims") if name in part.op.attrs}
    return [part.emit("Mean", [part.input(0), part.input(1)], **attrs)]


@registry.register(LOCAL_MEAN, lower=_own_mean, split_empty=False)
def local_mean(op: OpView) -> list[Signature]:
    """As Mean, but what a split of a reduced dim gives stays each part's own."""
    return reductions(op, L)


def _own_gradient(part: Lowering) -> list[Ref]:
    """Spreads the gradient over the part's own elements, and divides by how many of them share it."""
    made, given = part.shape_out(0), part.shape_in(0)
    multiples = [out // own if own else 0 for out, own in zip(made, given, strict=True)]
    tiled = part.emit("Tile", [part.input(0), part.const(multiples, "int32")], Tmultiples="int32")
    dtype = part.op.inputs[0].dtype
    return [part.emit("RealDiv", [tiled, part.const(prod(made) / max(1, prod(given)), dtype)])]


@registry.register(LOCAL_MEAN_GRADIENT, lower=_own_gradient, split_empty=False)
def local_mean_gradient(op: OpView) -> list[Signature]:
    """The gradient (reduced dims of length 1) as it is on each part -> that of what was averaged."""
    before, after = op.inputs[0].shape or (), op.outputs[0].shape or ()
    return [
        Signature((S(dim),), (S(dim),)) if given == made else Signature((L,), (S(dim),))
        for dim, (given, made) in enumerate(zip(before, after, strict=True))
    ]
