"""When a step reads its variables, and when it assigns to them, so that few values are there at a time."""

from __future__ import annotations

from whaleish.graph import LogicalGraph
from whaleish.passes.assignments import assign_late
from whaleish.passes.reads import time_reads
from whaleish.planner.plan import Plan


def timed(graph: LogicalGraph, plan: Plan) -> tuple[LogicalGraph, Plan]:
    """The step with reads ahead of their uses and assignments after them. `graph` and `plan` are not expanded."""
    graph, plan = time_reads(graph, plan)
    return assign_late(graph, plan), plan
