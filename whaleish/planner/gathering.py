"""Ops whose inputs are cheaper to move than their result.

The gradient of an embedding table is the example. Each part scatters the rows of its own batch into a table of zeros, a
partial sum as large as the table; the rows and ids themselves are few. So they are gathered, and the sum is made whole
at once, or just the rows that a part stores. (Products are left alone: every part would do all of their work.)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from math import inf

from whaleish.boxing.volume import volume
from whaleish.graph import layout_bytes
from whaleish.planner.facts import HEAVY
from whaleish.planner.view import AxisView, Candidate, made_layouts
from whaleish.sbp import B, Sbp


def gathering_seconds(
    view: AxisView, made: Mapping[int, Sbp], index: int, taken: Candidate, instead: Candidate
) -> float:
    """What reading an op's inputs as another candidate does costs more than as the one that was taken.

    Args:
      made: layout of each tensor where it is made.

    Returns:
      Seconds of moving and computing; infinite where the inputs cannot be had so, or the op is a product.
    """
    graph, op, parts = view.graph, view.graph.ops[index], view.axis.size
    if op.type in HEAVY or instead.expands:
        return inf
    moved = 0.0
    for tensor, before, after in zip(op.inputs, taken.inputs, instead.inputs, strict=True):
        if before == after or tensor in graph.constants:
            continue
        spec = graph.tensors[tensor]
        if spec.dtype == "resource" or tensor not in made:
            return inf
        nbytes = layout_bytes(spec.shape or (), spec.dtype)
        moved += volume(made[tensor], after, nbytes, parts) - volume(made[tensor], before, nbytes, parts)
    return view.cluster.boxing_seconds(moved, parts) + instead.seconds - taken.seconds


def gather_inputs(
    view: AxisView, taken: list[Candidate], outputs: Iterable[int], raw: AbstractSet[int] = frozenset()
) -> list[Candidate]:
    """Replaces ops whose result is read in one other layout only by the same ops making just that, where it is cheaper.

    Readers are settled before what they read.

    Args:
      outputs: tensors that leave the step, where whole values are needed. raw: ops that stay as they are.
    """
    graph, parts, leaving = view.graph, view.axis.size, set(outputs)
    made = made_layouts(graph, taken)
    readers, settled = graph.consumers(), list(taken)
    for index in range(len(graph.ops) - 1, -1, -1):
        op, candidate = graph.ops[index], taken[index]
        summands = any(sbp.is_partial or sbp.is_local for sbp in candidate.inputs)
        if op.type == "Placeholder" or len(op.outputs) != 1 or index in raw or summands:
            continue
        (tensor,), (own,) = op.outputs, candidate.outputs
        needs = {
            settled[r].inputs[k] for r in set(readers[tensor]) for k, t in enumerate(graph.ops[r].inputs) if t == tensor
        }
        needs |= {B} if tensor in leaving else set()
        if len(needs) != 1 or own in needs or any(need.is_partial or need.is_local for need in needs):
            continue
        (need,) = needs
        spec = graph.tensors[tensor]
        boxing = volume(own, need, layout_bytes(spec.shape or (), spec.dtype), parts)
        options = [c for c in view.candidates(index) if c.outputs == (need,)] if boxing else []
        costs = [(gathering_seconds(view, made, index, candidate, option), option) for option in options]
        cost, best = min(costs, key=lambda pair: pair[0], default=(inf, candidate))
        if cost < view.cluster.boxing_seconds(boxing, parts):
            settled[index] = best
    return settled
