"""Takes `IdentityN`s out: what leaves a bundle is what went in."""

from __future__ import annotations

from whaleish.graph import LogicalGraph


def untie(graph: LogicalGraph) -> None:
    """Lets every reader of an `IdentityN` read its input, in place.

    TensorFlow ties tensors together (all gradients of a step, say) that have nothing to do with each other, and as one
    op they could only be carried out in a few mixtures of layouts.
    """
    behind: dict[int, int] = {}
    for op in graph.ops:
        if op.type == "IdentityN":
            behind.update(zip(op.outputs, (behind.get(t, t) for t in op.inputs), strict=True))
        elif behind:
            op.inputs = tuple(behind.get(t, t) for t in op.inputs)
    graph.outputs = tuple(behind.get(t, t) for t in graph.outputs)
