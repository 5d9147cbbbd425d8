"""Mates: which variables share a layout because their updates are elementwise together."""

from __future__ import annotations

from collections.abc import Collection

from whaleish.graph import BACKWARD, UPDATE, LogicalGraph


def find_mates(graph: LogicalGraph) -> list[list[int]]:
    """Groups of handles of variables of one shape that elementwise ops join: a weight and its optimizer slots.

    Only ops outside the forward phase count, and only tensors of one shape; so two weights are mates only when
    something adds them up. Wrong mates would cost boxing, never a wrong result.
    """
    group_of = join_alike(graph, (BACKWARD, UPDATE))
    groups: dict[int, list[int]] = {}
    for variable in graph.variables:
        if variable.handle in group_of:
            groups.setdefault(group_of[variable.handle], []).append(variable.handle)
    return [group for group in groups.values() if len(group) > 1]


def join_alike(graph: LogicalGraph, phases: Collection[str]) -> dict[int, int]:
    """Tensor -> the first of those of one shape that it is joined with, by ops of some phases and ops on variables."""
    parent: dict[int, int] = {}

    def find(tensor: int) -> int:
        parent.setdefault(tensor, tensor)
        while parent[tensor] != tensor:
            parent[tensor] = parent[parent[tensor]]
            tensor = parent[tensor]
        return tensor

    for op in graph.ops:
        resources = any(graph.tensors[t].dtype == "resource" for t in op.inputs)
        if op.phase not in phases and not resources:
            continue
        tensors = [t for t in (*op.inputs, *op.outputs) if graph.tensors[t].shape]
        if len(tensors) < 2:
            continue
        shape = graph.tensors[tensors[-1]].shape
        same = [t for t in tensors if graph.tensors[t].shape == shape]
        for tensor in same[1:]:
            parent[find(tensor)] = find(same[0])
    return {tensor: find(tensor) for tensor in parent}
