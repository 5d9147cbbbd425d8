"""Layouts that the user stated, held against the mesh and the shapes."""

from __future__ import annotations

from whaleish.graph import LogicalGraph
from whaleish.mesh import Mesh
from whaleish.planner.roles import PlanError
from whaleish.sbp import Layout, format_layout


def pinned_layouts(graph: LogicalGraph, mesh: Mesh) -> dict[int, Layout]:
    """Handle -> layout, of the variables for which one is stated.

    Raises:
      PlanError: a layout, be it of a variable or of a tensor, does not fit the mesh or the shape.
    """
    for index, op in enumerate(graph.ops):
        if op.pinned:
            _check(op.pinned, graph.tensors[op.outputs[0]].shape, mesh, graph.place(index))
    found = {v.handle: v.pinned for v in graph.variables if v.pinned}
    for variable in graph.variables:
        if variable.pinned:
            _check(variable.pinned, variable.shape, mesh, f"variable {variable.name!r}")
    return found


def _check(layout: Layout, shape: tuple[int, ...] | None, mesh: Mesh, what: str) -> None:
    stated = f"wh.layout(..., {format_layout(layout)!r}) of {what}"
    if len(layout) != len(mesh.axes):
        raise PlanError(
            f"{stated}: it has {len(layout)} entries, and the scopes of this step make a mesh of {len(mesh.axes)} "
            f"({mesh.text()}). Give one entry for each axis, or nest scopes (replica(2) around split()) for more axes"
        )
    if not any(sbp.is_split for sbp in layout):
        return
    if shape is None:
        raise PlanError(f"{stated}: its shape is not known before running, so it can only be B on every axis")
    for sbp in layout:
        if sbp.is_split and sbp.dim >= len(shape):
            raise PlanError(f"{stated}: its shape is {list(shape)}, which has no dim {sbp.dim}")
    try:
        for part in range(mesh.size):
            mesh.pieces(shape, layout, part)
    except ValueError as error:
        raise PlanError(f"{stated}, of shape {list(shape)} on {mesh.text()}: {error}") from None
