"""The last passes: what a step goes through when it is known what it makes again."""

from __future__ import annotations

from whaleish.graph import LogicalGraph
from whaleish.passes.offload import offload_activations
from whaleish.passes.slots import offload_slots
from whaleish.passes.timed import timed
from whaleish.passes.turns import in_turns
from whaleish.planner.plan import Plan


def finished(graph: LogicalGraph, plan: Plan) -> tuple[LogicalGraph, Plan]:
    """The step with what it offloads on the host, and with all that it does in time. Nothing is expanded."""
    graph, plan = offload_activations(graph, plan)
    graph, plan = timed(offload_slots(graph, plan), plan)
    return in_turns(graph, plan), plan
