"""Assignments that wait for the last use of what they replace.

TensorFlow gives a variable new memory when it is assigned to while something read of it is still needed. Weight decay,
which no gradient goes into, would be assigned as soon as the step begins: then all weights are there twice until the
backward has used them.
"""

from __future__ import annotations

from dataclasses import replace

from whaleish.graph import LogicalGraph
from whaleish.planner.plan import Plan
from whaleish.rules.forms import names
from whaleish.rules.variables import READS

_SHARE_MEMORY = frozenset(names("ExpandDims Identity Reshape Squeeze StopGradient"))
"""Ops whose result is the memory of what they read."""


def assign_late(graph: LogicalGraph, plan: Plan) -> LogicalGraph:
    """The graph with each assignment waiting for the ops before it that use what was read of its variable.

    In steps with stages updates come after all micro-batches anyway.

    Args:
      graph, plan: not expanded. They stay as they are.
    """
    if plan.pipelining:
        return graph
    readers, ops = graph.consumers(), list(graph.ops)
    uses: dict[int, list[int]] = {}  # handle -> ops that use what was read since it was last assigned to
    for index, op in enumerate(graph.ops):
        if op.type == "ReadVariableOp" and not op.region:
            uses.setdefault(op.inputs[0], []).extend(_uses(graph, readers, op.outputs[0]))
        elif op.type not in READS and not op.region:
            handles = [tensor for tensor in op.inputs if tensor in uses]
            before = {use for handle in handles for use in uses.pop(handle) if use < index}
            if before:
                ops[index] = replace(op, controls=tuple(sorted({*op.controls, *before})))
    return replace(graph, ops=ops)


def _uses(graph: LogicalGraph, readers: list[list[int]], tensor: int) -> list[int]:
    """The ops outside of loops and conditions that use a tensor, or what shares its memory."""
    found, todo = [], [tensor]
    while todo:
        for reader in readers[todo.pop()]:
            op = graph.ops[reader]
            if op.region:
                continue
            found.append(reader)
            if op.type in _SHARE_MEMORY:
                todo += op.outputs
    return found
