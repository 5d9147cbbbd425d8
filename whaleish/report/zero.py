"""What `replica(zero=...)` asks for and the plan does not do."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from whaleish.alike import join_alike, variables_alike
from whaleish.graph import UPDATE, LogicalGraph, Variable
from whaleish.planner.plan import Plan
from whaleish.planner.view import op_view
from whaleish.rules import registry
from whaleish.sbp import is_whole
from whaleish.zero import WEIGHTS, WHOLE_BELOW, asking, zero_of


def whole_in_spite(graph: LogicalGraph, plan: Plan) -> list[str]:
    """Lines on the large variables under `replica(zero=...)` that every replica stores whole all the same, and why."""
    zeros = [zero_of(path) for path in graph.scopes]
    asked, found = {handle: zeros[scope] for handle, scope in asking(graph, zeros).items()}, list[str]()
    if not asked:
        return []
    layouts = {v.handle: layout for v, (_, layout) in zip(graph.variables, plan.variables, strict=True)}
    for group in variables_alike(graph, join_alike(graph, (UPDATE,))).values():
        zero = max(asked.get(variable.handle, 0) for variable in group)
        meant = [v for v in group if v.handle not in asked or zero >= WEIGHTS] if zero else []
        whole = [v for v in meant if prod(v.shape) >= WHOLE_BELOW and is_whole(layouts[v.handle])]
        found += [f"  {v.dtype}{list(v.shape)}  {v.name}: {_reason(graph, group)}" for v in whole]
    return [f"{len(found)} variables are whole in spite of replica(zero=...):", *found] if found else []


def _reason(graph: LogicalGraph, group: Sequence[Variable]) -> str:
    handles = {variable.handle for variable in group}
    for index, op in enumerate(graph.ops):
        if handles.intersection(op.inputs) and (registry.get(op.type) is None or not op_view(graph, index).is_static):
            return f"{graph.place(index)} runs whole on it or on what is updated with it"
    return (
        "it has no dim of as many elements as there are parts along which all ops could work on them, or another "
        "layout is stated or was used before"
    )
