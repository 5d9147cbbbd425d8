"""What `explain` says of `wh.offload()`: what waits in the host's memory, and by which scope."""

from __future__ import annotations

from whaleish.graph import LogicalGraph, Scope, layout_bytes
from whaleish.mesh import Mesh, Shape
from whaleish.offloading import ACTIVATIONS, OFFLOAD, SLOTS, offloaded_slots, offloading
from whaleish.planner.plan import Plan
from whaleish.rules.host import TO_HOST
from whaleish.sbp import Layout
from whaleish.tables import bytes_text


def offloaded_lines(graph: LogicalGraph, plan: Plan) -> list[str]:
    """A line for each place where the scope is entered, and kind, with bytes of all devices together.

    Args:
      graph, plan: with their passes behind them, not expanded.
    """
    scopes: dict[str, list[Scope]] = {}
    for scope in dict.fromkeys(scope for path in graph.scopes for scope in path if scope.kind == OFFLOAD):
        scopes.setdefault(graph.begin(scope), []).append(scope)
    found = {ACTIVATIONS: _activations(graph, plan), SLOTS: _slots(graph, plan)}
    lines = []
    for begin, alike in scopes.items():
        by = f"wh.offload(){begin}" + (f", entered {len(alike)} times" if len(alike) > 1 else "")
        for kind, sizes in found.items():
            own = [size for scope in alike for size in sizes.get(scope, ())]
            if own:
                lines.append(f"  {len(own)} of {kind}, {bytes_text(sum(own))}, of {by}")
            elif any(offloading(path, kind) in alike for path in graph.scopes):
                lines.append(f"  no {kind} of {by}: {_WHY_NONE[kind]}")
    return ["what waits in the host's memory:", *lines] if lines else []


_WHY_NONE = {
    ACTIVATIONS: "nothing large enough that is made there is read by the backward",
    SLOTS: "no update keeps anything large enough of the variables that are used there",
}


def _activations(graph: LogicalGraph, plan: Plan) -> dict[Scope, list[int]]:
    found: dict[Scope, list[int]] = {}
    for index, op in enumerate(graph.ops):
        scope = offloading(graph.scopes[op.scope], ACTIVATIONS)
        if op.type == TO_HOST and scope is not None:
            spec = graph.tensors[op.outputs[0]]
            nbytes = _on_all(plan.mesh_of(index), plan.choices[index].outputs[0], spec.shape or (), spec.dtype)
            found.setdefault(scope, []).append(nbytes)
    return found


def _slots(graph: LogicalGraph, plan: Plan) -> dict[Scope, list[int]]:
    by, layouts, found = offloaded_slots(graph), dict(plan.variables), dict[Scope, list[int]]()
    for variable in graph.variables:
        if variable.on_host:
            space = plan.mesh_of(graph.tensors[variable.handle].producer).in_space
            nbytes = _on_all(space, layouts[variable.name], variable.shape, variable.dtype)
            found.setdefault(by[variable.handle], []).append(nbytes)
    return found


def _on_all(mesh: Mesh, layout: Layout, shape: Shape, dtype: str) -> int:
    """Bytes of all parts."""
    return sum(layout_bytes(mesh.local_shape(shape, layout, part), dtype) for part in range(mesh.size))
