"""Marks the means of `local_statistics()` scopes, and their gradients, as each part's own."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from whaleish.graph import BACKWARD, FORWARD, LogicalGraph, Op
from whaleish.rules.local import LOCAL_MEAN, LOCAL_MEAN_GRADIENT
from whaleish.scopes import ScopeError

_SPREADS = ("Tile", "BroadcastTo")


def mark_local_means(graph: LogicalGraph) -> bool:
    """Replaces, in place, `Mean` by `LocalMean` inside `local_statistics()`, and what differentiates it likewise.

    Returns whether there were any.

    TensorFlow differentiates a mean by spreading the gradient over what was averaged and dividing by how many elements
    that is, which tracing has made a number. It is found by that shape, under the name scope of the mean.

    Raises:
      ScopeError: a mean that depends on trainable variables has no such gradient in a step that has a backward pass.
    """
    local = {number for number, path in enumerate(graph.scopes) if any(s.kind == "local_statistics" for s in path)}
    means = [op for op in graph.ops if op.type == "Mean" and op.phase == FORWARD and op.scope in local]
    means = [mean for mean in means if graph.tensors[mean.outputs[0]].shape]  # one number, as a loss, is no statistic
    if not means:
        return False
    readers = graph.consumers()
    trained = _trained(graph)
    backward = any(op.phase == BACKWARD for op in graph.ops)
    found = [list(_gradients(graph, mean)) for mean in means]
    for mean, gradients in zip(means, found, strict=True):
        stopped = all(graph.ops[reader].type == "StopGradient" for reader in readers[mean.outputs[0]])
        if backward and not gradients and not stopped and mean.inputs[0] in trained:
            raise ScopeError(
                f"wh.local_statistics(): the gradient of the mean {mean.name!r} was not found, so it cannot be made "
                "each part's own. Use tf.reduce_mean (or a Keras layer that does) for it, or take it out of the scope"
            )
    for mean in means:
        mean.type, mean.payload = LOCAL_MEAN, None
    # Means of one name scope, as those of moments, find each other's gradients too.
    for division, spread in {id(pair[0]): pair for gradients in found for pair in gradients}.values():
        division.type, division.payload = LOCAL_MEAN_GRADIENT, None
        division.inputs, division.attrs = spread.inputs[:1], {}
    return True


def _gradients(graph: LogicalGraph, mean: Op) -> Iterator[tuple[Op, Op]]:
    """(the division, the spreading before it) of each gradient of a mean."""
    whole = graph.tensors[mean.inputs[0]].shape or ()
    kept = prod(graph.tensors[mean.outputs[0]].shape or ())
    prefix = "gradient_tape/" + mean.name.rpartition("/")[0]
    named = any(op.phase == BACKWARD and op.name.startswith(prefix) for op in graph.ops)
    for op in graph.ops:
        if op.phase != BACKWARD or op.type != "RealDiv" or (named and op.name.rpartition("/")[0] != prefix):
            continue
        spread, divisor = graph.ops[graph.tensors[op.inputs[0]].producer], graph.constants.get(op.inputs[1])
        if spread.type not in _SPREADS or divisor is None or divisor.size != 1:
            continue
        given = prod(graph.tensors[spread.inputs[0]].shape or ())
        fits = graph.tensors[op.outputs[0]].shape == whole and given == kept
        if fits and float(divisor.reshape(())) == prod(whole) / max(1, kept):
            yield op, spread


def _trained(graph: LogicalGraph) -> set[int]:
    """Tensors that depend on trainable variables."""
    found = {v.handle for v in graph.variables if v.trainable}
    for op in graph.ops:
        if op.type != "StopGradient" and any(t in found for t in op.inputs):
            found.update(op.outputs)
    return found
