"""What `wh.offload()` asks for: what waits in the memory of the host, and not of the device."""

from __future__ import annotations

from math import prod

from whaleish.alike import join_alike, variables_alike
from whaleish.graph import FORWARD, UPDATE, LogicalGraph, Scope, ScopePath

OFFLOAD = "offload"
ACTIVATIONS, SLOTS = "activations", "slots"
KINDS = (ACTIVATIONS, SLOTS)

HOST = "/device:CPU:0"
"""TensorFlow's name of the device whose memory is the host's."""

STAYS_BELOW = 4096
"""Elements below which a tensor stays on the device: what it would save is not worth copies of its own."""


def offloading(path: ScopePath, kind: str) -> Scope | None:
    """The innermost scope of a path that offloads a kind of memory; None where none does."""
    asks = (scope for scope in reversed(path) if scope.kind == OFFLOAD and kind in scope.option("kinds", KINDS))
    return next(asks, None)


def offloaded_slots(graph: LogicalGraph) -> dict[int, Scope]:
    """Handle -> the scope that offloads it, of what updates keep of the weights that forward ops under it use."""
    scope_of = [offloading(path, SLOTS) for path in graph.scopes]
    if not any(scope_of):
        return {}
    handles, used = {variable.handle for variable in graph.variables}, dict[int, Scope]()
    for op in graph.ops:
        scope = scope_of[op.scope]
        if op.phase == FORWARD and scope is not None:
            used.update(dict.fromkeys(handles.intersection(op.inputs), scope))
    found: dict[int, Scope] = {}
    for group in variables_alike(graph, join_alike(graph, (UPDATE,))).values():
        by = next((used[variable.handle] for variable in group if variable.handle in used), None)
        for variable in group:
            if by is not None and variable.handle not in used and prod(variable.shape) >= STAYS_BELOW:
                found[variable.handle] = by
    return found
