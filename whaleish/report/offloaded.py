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
    """A line for each scope and kind, bytes of all devices together; none where nothing is asked for.

    Args:
      graph, plan: with their passes behind them, not expanded.
    """
    scopes = dict.fromkeys(scope for path in graph.scopes for scope in path if scope.kind == OFFLOAD)
    found = {ACTIVATIONS: _activations(graph, plan), SLOTS: _slots(graph, plan)}
    lines = []
    for scope in scopes:
        for kind, sizes in found.items():
            own = sizes.get(scope, [])
            if own:
                lines.append(f"  {len(own)} of {kind}, {bytes_text(sum(own))}, of wh.offload(){graph.begin(scope)}")
            elif any(offloading(path, kind) == scope for path in graph.scopes):
                why = _WHY_NONE[kind]
                lines.append(f"  no {kind} of wh.offload(){graph.begin(scope)}: {why}")
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
