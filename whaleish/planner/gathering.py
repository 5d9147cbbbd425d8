"""Ops whose inputs are cheaper to move than their result.

The gradient of an embedding table is the example. Each part scatters the rows of its own batch into a table of zeros, a
partial sum as large as the table; the rows and ids themselves are few. So they are gathered, and the sum is made whole
at once, or just the rows that a part stores. (Products are left alone: every part would do all of their work.) An op
that can gather what it makes by itself, for less, does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from math import inf

from whaleish.boxing.volume import volume
from whaleish.graph import LogicalGraph, layout_bytes
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
    moved = 2.0 * (parts - 1) * (instead.inner_bytes - taken.inner_bytes)
    for tensor, before, after in zip(op.inputs, taken.inputs, instead.inputs, strict=True):
        if before == after or tensor in graph.constants:
            continue
        if graph.tensors[tensor].dtype in ("resource", "string") or tensor not in made:
            return inf
        nbytes = _nbytes(graph, tensor)
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
        if op.type == "Placeholder" or not op.outputs or index in raw or summands:
            continue
        wanted = tuple(_only_need(graph, settled, readers[tensor], tensor, tensor in leaving) for tensor in op.outputs)
        if wanted == candidate.outputs or any(need is None or need.is_partial or need.is_local for need in wanted):
            continue
        boxing = sum(
            volume(own, need, _nbytes(graph, tensor), parts)
            for tensor, own, need in zip(op.outputs, candidate.outputs, wanted, strict=True)
            if need is not None
        )
        options = [c for c in view.candidates(index) if c.outputs == wanted] if boxing else []
        costs = [(gathering_seconds(view, made, index, candidate, option), option) for option in options]
        cost, best = min(costs, key=lambda pair: pair[0], default=(inf, candidate))
        if cost < view.cluster.boxing_seconds(boxing, parts):
            settled[index] = best
    return settled


def _only_need(
    graph: LogicalGraph, taken: list[Candidate], readers: Iterable[int], tensor: int, leaves: bool
) -> Sbp | None:
    """The layout in which all read a tensor; None where they differ, or nobody does."""
    needs = {taken[r].inputs[k] for r in set(readers) for k, t in enumerate(graph.ops[r].inputs) if t == tensor}
    needs |= {B} if leaves else set()
    return needs.pop() if len(needs) == 1 else None


def _nbytes(graph: LogicalGraph, tensor: int) -> int:
    return layout_bytes(graph.tensors[tensor].shape or (), graph.tensors[tensor].dtype)
