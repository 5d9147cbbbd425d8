"""Which tensors of one shape are joined by elementwise ops: a gradient, the slots that it meets, and the weight."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from whaleish.graph import LogicalGraph, Variable


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


def variables_alike(graph: LogicalGraph, alike: Mapping[int, int]) -> dict[int, list[Variable]]:
    """The variables that `join_alike` joins, by the tensor that it calls them by; each of the others by itself."""
    groups: dict[int, list[Variable]] = {}
    for variable in graph.variables:
        groups.setdefault(alike.get(variable.handle, variable.handle), []).append(variable)
    return groups
