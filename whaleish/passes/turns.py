"""Waiting where micro-batches take turns: nothing that comes before all of them waits for any of them."""

from __future__ import annotations

from dataclasses import replace

from whaleish.graph import LogicalGraph
from whaleish.passes.segments import runs_once
from whaleish.planner.plan import Plan


def in_turns(graph: LogicalGraph, plan: Plan) -> LogicalGraph:
    """The graph in which what runs once, and each micro-batch needs, waits for nothing that each micro-batch makes.

    TensorFlow's gradients wait for what they are multiplied with, though they do not read it: where such an op follows
    from the step's arguments alone it runs once, before the first micro-batch. In steps with stages chunks see to that.

    Args:
      graph, plan: not expanded. They stay as they are.
    """
    if plan.pipelining or plan.mesh.micro_batches == 1:
        return graph
    ops, needed = list(graph.ops), set[int]()
    for index in range(len(ops) - 1, -1, -1):
        op, once = ops[index], runs_once(plan, plan.choices[index])
        if once and index not in needed:
            continue
        if once and index not in graph.effects:
            kept = tuple(control for control in op.controls if runs_once(plan, plan.choices[control]))
            op = ops[index] = replace(op, controls=kept)
        needed |= {*op.controls, *(graph.tensors[tensor].producer for tensor in op.inputs)}
    return replace(graph, ops=ops)
