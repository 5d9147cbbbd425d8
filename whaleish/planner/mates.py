"""Mates: which variables share a layout because their updates are elementwise together."""

from __future__ import annotations

from whaleish.graph import FORWARD, LogicalGraph


def find_mates(graph: LogicalGraph) -> list[list[int]]:
    """Groups of handles of variables of one shape that elementwise ops join: a weight and its optimizer slots.

    Only ops outside the forward phase count, and only tensors of one shape; so two weights are mates only when
    something adds them up. Wrong mates would cost boxing, never a wrong result.
    """
    parent: dict[int, int] = {}

    def find(tensor: int) -> int:
        parent.setdefault(tensor, tensor)
        while parent[tensor] != tensor:
            parent[tensor] = parent[parent[tensor]]
            tensor = parent[tensor]
        return tensor

    for op in graph.ops:
        resources = any(graph.tensors[t].dtype == "resource" for t in op.inputs)
        if op.phase == FORWARD and not resources:
            continue
        tensors = [t for t in (*op.inputs, *op.outputs) if graph.tensors[t].shape]
        if len(tensors) < 2:
            continue
        shape = graph.tensors[tensors[-1]].shape
        same = [t for t in tensors if graph.tensors[t].shape == shape]
        for tensor in same[1:]:
            parent[find(tensor)] = find(same[0])
    groups: dict[int, list[int]] = {}
    for variable in graph.variables:
        if variable.handle in parent:
            groups.setdefault(find(variable.handle), []).append(variable.handle)
    return [group for group in groups.values() if len(group) > 1]
