"""Plans that the user gives to a step, held against the step."""

from __future__ import annotations

from whaleish.capture import fingerprint
from whaleish.graph import LogicalGraph
from whaleish.planner import Plan, PlanError
from whaleish.sbp import Layout, format_layout
from whaleish.world import world


def check_given(plan: object) -> None:
    """Raises TypeError where what was given is no plan."""
    if not isinstance(plan, Plan | None):
        raise TypeError(
            f"plan={_short(plan)} is of type {type(plan).__name__}, and a plan is a wh.Plan: what plan_for "
            "returns, wh.Plan.parse(text) for its text, or wh.Plan.load(path) for a file"
        )


def _short(value: object) -> str:
    """The beginning of a value as Python writes it."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."


def fitting(plan: Plan, graph: LogicalGraph, arrivals: tuple[Layout, ...], name: str) -> Plan:
    """A plan of the user's, if it is for this graph, these devices, and arguments that arrive so."""
    own = fingerprint(graph)[:12]
    if plan.graph != own:
        raise PlanError(
            f"the plan given to the step {name!r} is for graph {plan.graph}, and the step with these arguments is "
            f"graph {own}: its code, its scopes or its arguments' shapes are others. Make the plan anew with plan_for"
        )
    if len(plan.devices) != world().size:
        raise PlanError(
            f"the plan given to the step {name!r} is for {len(plan.devices)} devices; there are {world().size}"
        )
    if max(plan.devices) >= world().size:
        raise PlanError(
            f"the plan given to the step {name!r} is for devices {list(plan.devices)}; there are {world().size}, "
            f"numbered 0 to {world().size - 1}"
        )
    if plan.inputs != arrivals:
        raise PlanError(
            f"the plan given to the step {name!r} takes its inputs as {' '.join(map(format_layout, plan.inputs))}, and "
            f"they arrive as {' '.join(map(format_layout, arrivals))}: S(0) is a part of the batch (inputs='local', "
            "distribute_dataset), B the whole. Make the plan anew with arguments that arrive in the same way"
        )
    return plan
