"""Readiness: the order in which TensorFlow can run the ops of a step, whatever the order of the graph."""

from __future__ import annotations

from collections import deque

from whaleish.graph import LogicalGraph


def ready_order(graph: LogicalGraph) -> list[int]:
    """The ops, as they become ready; with bodies of loops and conditions among them, as they stand."""
    ops = graph.ops
    if len(graph.regions) > 1:
        return list(range(len(ops)))
    before = [
        {graph.tensors[t].producer for t in op.inputs if t not in graph.constants} | set(op.controls) for op in ops
    ]
    after: list[list[int]] = [[] for _ in ops]
    for index, earlier in enumerate(before):
        for other in earlier:
            after[other].append(index)
    waits = [len(earlier) for earlier in before]
    ready = deque(index for index, count in enumerate(waits) if not count)
    order = []
    while ready:
        index = ready.popleft()
        order.append(index)
        for reader in after[index]:
            waits[reader] -= 1
            if not waits[reader]:
                ready.append(reader)
    return order
