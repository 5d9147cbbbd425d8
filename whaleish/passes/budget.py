"""Budgets: as few segments as it takes for a step to fit into so many bytes on each device."""

from __future__ import annotations

from whaleish.graph import LogicalGraph
from whaleish.passes.blocks import Atom, find_blocks, joined
from whaleish.passes.finished import finished
from whaleish.passes.recompute import Recomputed, recompute
from whaleish.passes.segments import RECOMPUTE
from whaleish.planner.held import Peak
from whaleish.planner.liveness import Liveness
from whaleish.planner.plan import Plan
from whaleish.planner.roles import PlanError
from whaleish.rewrite.expand import expand
from whaleish.tables import bytes_text

AUTO = "auto"


def check_budget(recompute: str | None, memory: int | None) -> int | None:
    """The budget that `wh.function(recompute=..., memory=...)` gives; None for none.

    Raises:
      ValueError: they do not go together, or are none.
    """
    if recompute not in (None, AUTO):
        raise ValueError(
            f'recompute={recompute!r}: give "auto" and the bytes that a device may hold, memory=2 << 30; or put '
            "wh.recompute() round the layers to be made again"
        )
    if (recompute is None) != (memory is None):
        raise ValueError(
            f'recompute={recompute!r}, memory={memory!r}: give both, recompute="auto" and memory, or none of them'
        )
    if memory is not None and (isinstance(memory, bool) or not isinstance(memory, int) or memory < 1):
        raise ValueError(f"memory={memory!r}: give bytes for each device as an integer, 2 << 30 for 2 GiB")
    return memory


def recomputed(graph: LogicalGraph, plan: Plan, memory: int | None) -> Recomputed:
    """The step that makes again what its scopes or its budget ask for."""
    return recompute(graph, plan) if memory is None else fit(graph, plan, memory)


def fit(graph: LogicalGraph, plan: Plan, memory: int) -> Recomputed:
    """The step with the earliest blocks of its forward made again, as many as it takes, each in a segment.

    Blocks are joined, by twos, threes and more, where what goes from one to the next is too much.

    Args:
      memory: bytes that a device may hold, of variables, arguments, and what a step makes.

    Raises:
      PlanError: it does not fit, whatever is made again; says how little would do, and what takes the most.
    """
    _check(graph, plan)
    made = recompute(graph, plan)
    least = most = peak_of(made)
    if most.nbytes <= memory:
        return made
    blocks = find_blocks(graph)
    size = 1
    while size <= max(1, len(blocks) // 2):
        groups = [joined(blocks[first : first + size]) for first in range(0, len(blocks), size)]
        peak = peak_of(recompute(graph, plan, groups))
        least = min(least, peak, key=lambda found: found.nbytes)
        if peak.nbytes <= memory:
            return _fewest(graph, plan, groups, memory)
        size += max(1, size // 2)
    raise PlanError(_too_much(memory, most, least))


def peak_of(made: Recomputed) -> Peak:
    """When a device holds most, of the device that does."""
    graph, plan = expand(*finished(made.graph, made.plan))
    parts = plan.mesh.parts_at(0) if any(axis.shares for axis in plan.mesh.axes) else [0]
    return max(map(Liveness(graph, plan).peak, parts), key=lambda peak: peak.nbytes)


def _fewest(graph: LogicalGraph, plan: Plan, groups: list[Atom], memory: int) -> Recomputed:
    """The first so many groups made again, as few as will do; with all of them the step fits."""
    low, high = 1, len(groups)
    while low < high:
        middle = (low + high) // 2
        if peak_of(recompute(graph, plan, groups[:middle])).nbytes <= memory:
            high = middle
        else:
            low = middle + 1
    return recompute(graph, plan, groups[:high])


def _check(graph: LogicalGraph, plan: Plan) -> None:
    if plan.pipelining is not None:
        raise PlanError(
            'recompute="auto" is not there for steps with stages. Put wh.recompute() round layers, or give '
            "wh.pipeline(recompute=True)"
        )
    own = next((scope for path in graph.scopes for scope in path if scope.kind == RECOMPUTE), None)
    if own is not None:
        raise PlanError(
            f'the step has a wh.recompute(){graph.begin(own)}, and recompute="auto" chooses segments by itself. Take '
            "one of the two away"
        )


def _too_much(memory: int, most: Peak, least: Peak) -> str:
    largest = "; ".join(f"{bytes_text(held.nbytes)} of {held.kind}, {held.place}" for held in least.held[:3])
    return (
        f"memory={memory}: a device would hold {bytes_text(most.nbytes)}, and with recomputation at the least "
        f"{bytes_text(least.nbytes)} ({least.nbytes} bytes). The largest then: {largest}. Allow more, make the batch "
        "smaller or cut it by wh.accumulate(), or divide what is largest by wh.split() over more devices"
    )
