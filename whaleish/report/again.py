"""What `explain` says of recomputation: which segments are made again, and what that costs."""

from __future__ import annotations

from whaleish.graph import UPDATE, LogicalGraph
from whaleish.passes.recompute import Recomputed
from whaleish.passes.segments import RECOMPUTE
from whaleish.planner.flops import flops
from whaleish.planner.view import op_view


def recompute_lines(made: Recomputed) -> list[str]:
    """A line for all, and one for each segment; none where nothing is asked for."""
    graph = made.graph
    parts: dict[int, list[int]] = {}
    for index, op in enumerate(graph.ops):
        if op.again:
            parts.setdefault(op.again, []).append(index)
    if not parts and not made.empty:
        return []
    work = [
        0.0 if op.phase == UPDATE else flops(op_view(graph, index)) * graph.repeats(index)
        for index, op in enumerate(graph.ops)
    ]
    again = sum(work[index] for ops in parts.values() for index in ops)
    before = sum(work) - again
    lines = [
        f"{len(parts)} segments are made again for the backward: {sum(map(len, parts.values()))} ops, "
        f"{again / before if before else 0:.1%} more FLOPs"
    ]
    for ops in sorted(parts.values(), key=lambda ops: min(made.origin[index] for index in ops)):
        first = min(ops, key=lambda index: made.origin[index])
        lines.append(f"  {len(ops)} ops, {sum(work[i] for i in ops):.3g} FLOPs, {_where(graph, first)}")
    lines += [
        f"  nothing of wh.recompute(){graph.begin(scope)}: all that is made there leaves it, can be made only once, or "
        "has no gradient"
        for scope in made.empty
    ]
    return lines


def _where(graph: LogicalGraph, index: int) -> str:
    scope = next((scope for scope in graph.scopes[graph.ops[index].scope] if scope.kind == RECOMPUTE), None)
    by = f"wh.recompute(){graph.begin(scope)}, " if scope is not None else ""
    return f"{by}from {graph.place(index)} on"
