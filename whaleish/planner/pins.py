"""Layouts that the user stated, held against the mesh and the shapes."""

from __future__ import annotations

from whaleish.graph import LogicalGraph
from whaleish.mesh import Mesh
from whaleish.planner.roles import PlanError
from whaleish.sbp import Layout, format_layout


def pinned_layouts(graph: LogicalGraph, mesh: Mesh) -> dict[int, Layout]:
    """Tensor -> layout, with the smallest units, of the tensors and the variables' handles for which one is stated.

    Raises:
      PlanError: a layout, be it of a variable or of a tensor, does not fit the mesh or the shape.
    """
    found: dict[int, Layout] = {}
    for index, op in enumerate(graph.ops):
        if op.pinned:
            found[op.outputs[0]] = _fitted(op.pinned, graph.tensors[op.outputs[0]].shape, mesh, graph.place(index))
    for variable in graph.variables:
        if variable.pinned:
            found[variable.handle] = _fitted(variable.pinned, variable.shape, mesh, f"variable {variable.name!r}")
    return found


def _fitted(layout: Layout, shape: tuple[int, ...] | None, mesh: Mesh, what: str) -> Layout:
    stated = f"wh.layout(..., {format_layout(layout)!r}) of {what}"
    if len(layout) != len(mesh.axes):
        raise PlanError(
            f"{stated}: it has {len(layout)} entries, and the scopes of this step make a mesh of {len(mesh.axes)} "
            f"({mesh.text()}). Give one entry for each axis, or nest scopes (replica(2) around split()) for more axes"
        )
    if not any(sbp.is_split for sbp in layout):
        return layout
    if shape is None:
        raise PlanError(f"{stated}: its shape is not known before running, so it can only be B on every axis")
    for sbp in layout:
        if sbp.is_split and sbp.dim >= len(shape):
            raise PlanError(f"{stated}: its shape is {list(shape)}, which has no dim {sbp.dim}")
    try:
        return mesh.normal(layout, shape)
    except ValueError as error:
        raise PlanError(f"{stated}, of shape {list(shape)} on {mesh.text()}: {error}") from None
