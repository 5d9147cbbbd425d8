"""Assignments that wait for the last use of what they replace.

TensorFlow gives a variable new memory when it is assigned to while something read of it is still needed. Weight decay,
which no gradient goes into, would be assigned as soon as the step begins: then all weights are there twice until the
backward has used them. And a read that a pass has put before an assignment must come before it.
"""

from __future__ import annotations

from dataclasses import replace

from whaleish.graph import LogicalGraph
from whaleish.planner.liveness import ALIASES
from whaleish.planner.plan import Plan
from whaleish.rules.variables import READS


def assign_late(graph: LogicalGraph, plan: Plan) -> LogicalGraph:
    """The graph with each assignment waiting for the reads of its variable before it, and for the ops that use them.

    What is in a loop or condition waits as that does, so it is the outermost of them that is made to wait. In steps
    with stages updates come after all micro-batches anyway.

    Args:
      graph, plan: not expanded. They stay as they are.
    """
    if plan.pipelining:
        return graph
    readers, ops = graph.consumers(), list(graph.ops)
    runner = {region: index for index, op in enumerate(ops) for region in op.attrs.get("regions", ())}
    uses: dict[int, list[int]] = {}  # handle -> its reads since it was last assigned to, and the ops that use them
    for index, op in enumerate(graph.ops):
        if op.type == "ReadVariableOp" and not op.region:
            uses.setdefault(op.inputs[0], []).extend([index, *_uses(graph, readers, op.outputs[0])])
        elif op.type not in READS:
            handles = [tensor for tensor in op.inputs if tensor in uses]
            before = {use for handle in handles for use in uses.pop(handle) if use < index}
            waiting = index
            while ops[waiting].region:
                waiting = runner[ops[waiting].region]
            if before:
                ops[waiting] = replace(ops[waiting], controls=tuple(sorted({*ops[waiting].controls, *before})))
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
            if op.type in ALIASES:
                todo += op.outputs
    return found
