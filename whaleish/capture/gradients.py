"""Marks the gradients of the weights under `replica(zero=...)`, which are shared out before anything else is done."""

from __future__ import annotations

from math import prod

from whaleish.alike import join_alike
from whaleish.capture.insert import add_tensors, insert_ops
from whaleish.graph import BACKWARD, UPDATE, LogicalGraph, Op
from whaleish.rules.gradient import GRADIENT
from whaleish.zero import GRADIENTS, WHOLE_BELOW, asking, zero_of


def mark_gradients(graph: LogicalGraph) -> bool:
    """Writes, in place, a `Gradient` behind each op that makes the gradient of such a weight; what updates reads that.

    From zero=2 on it is an op of the backward pass: over micro-batches each one's gradient is shared out, and what is
    added up is a piece. With zero=1 it is one of the update, and the sum over micro-batches is shared out.

    Returns whether there were any.
    """
    zeros = [zero_of(path) for path in graph.scopes]
    weights = {v.handle for v in graph.variables if v.trainable and prod(v.shape) >= WHOLE_BELOW}
    asked = {handle: scope for handle, scope in asking(graph, zeros).items() if handle in weights}
    if not asked:
        return False
    alike, readers, new = join_alike(graph, (UPDATE,)), graph.consumers(), dict[int, list[Op]]()
    scope_of = {alike.get(handle, handle): scope for handle, scope in asked.items()}
    for index, op in enumerate(graph.ops):
        if op.phase != BACKWARD or op.region:
            continue
        for tensor in op.outputs:
            updating = [reader for reader in readers[tensor] if graph.ops[reader].phase == UPDATE]
            scope = scope_of.get(alike.get(tensor, -1))
            if not updating or scope is None:
                continue
            (made,) = add_tensors(graph, [tensor])
            phase = BACKWARD if zeros[scope] >= GRADIENTS else UPDATE
            mark = Op(f"{op.name}/{GRADIENT}", GRADIENT, (tensor,), (made,), phase=phase, scope=scope)
            new.setdefault(index + 1, []).append(mark)
            for reader in updating:
                other = graph.ops[reader]
                other.inputs = tuple(made if t == tensor else t for t in other.inputs)
    insert_ops(graph, new)
    return bool(new)
