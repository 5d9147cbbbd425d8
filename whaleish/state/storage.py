"""Where a variable's storage is, and how to move it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import tensorflow as tf

from whaleish import world as world_
from whaleish.mesh import Mesh
from whaleish.sbp import Layout, format_layout, is_whole
from whaleish.state.parts import Parts
from whaleish.state.ranks import Exchange
from whaleish.state.variable import LENT, LaidOutVariable


@dataclass(frozen=True)
class Storage:
    """How a variable is stored.

    Attributes:
      layout, mesh: as given to `lay_out`; `()` and None if it never was.
      parts: the numbers of the mesh's parts that are stored in this process; `(0,)` for a whole variable.
      handles: the resource handle of each of `parts`. A whole variable has its own handle, once; parts that hold the
        same piece have the same handle, on the device of the first of them.
    """

    layout: Layout
    mesh: Mesh | None
    parts: tuple[int, ...]
    handles: tuple[tf.Tensor, ...]

    @property
    def whole(self) -> bool:
        return is_whole(self.layout)


def storage(variable: tf.Variable) -> Storage:
    """How `variable` is stored in this process. Ends a loan of its whole to a plain function."""
    if isinstance(variable, LaidOutVariable):
        if variable.in_parts:
            variable.settle()
            parts = variable.parts
            handles = tuple(resource.handle for resource in parts.resources)
            return Storage(parts.layout, parts.mesh, parts.numbers, handles)
        return Storage(variable._layout, variable._mesh, (0,), (variable.handle,))
    return Storage((), None, (0,), (variable.handle,))


class Counter:
    """Counts what happened in this process, to see whether anything did since."""

    count = 0


moves = Counter()
"""Variables whose storage was moved: while it stands still, all handles are where they were."""

pins = Counter()
"""Layouts that the user stated for variables: while it stands still, plans hold."""


def pin(variable: LaidOutVariable, layout: Layout) -> None:
    """States a variable's layout, which it gets when a step that uses it is compiled."""
    if variable.pinned != layout:
        variable.pinned = layout
        pins.count += 1


def not_laid_out(variable: tf.Variable, layout: Layout) -> ValueError:
    """The error for a variable that the creator of `wh.init()` has not made."""
    return ValueError(
        f"{variable.name} cannot be laid out as {format_layout(layout)}: it was made before wh.init(), after "
        "keras.utils.clear_session(), in another thread, or inside a tf.function. Call wh.init() first, and again "
        "after clear_session, then make the model and the optimizer."
    )


def settle_all() -> None:
    """Ends all loans, so that every variable in parts is where `storage` says. To call before each step; cheap."""
    if LENT:
        for variable in list(LENT.values()):
            variable.settle()


def lay_out(variable: tf.Variable, layout: Layout, mesh: Mesh) -> Storage:
    """Stores a variable so, keeping its value, and frees the storage it had.

    A layout that is B on every axis is the variable's own storage, under its own handle: nothing is copied unless it
    was in parts before. Over several processes, leaving a layout with parts is a collective.

    Raises:
      ValueError: the layout does not fit the mesh or the shape, or the variable cannot be laid out.
    """
    whole = is_whole(layout)
    if not isinstance(variable, LaidOutVariable):
        if whole:
            return storage(variable)
        raise not_laid_out(variable, layout)
    _check(variable, layout, mesh)
    if variable.in_parts and (variable.parts.layout, variable.parts.mesh) == (layout, mesh):
        return storage(variable)
    variable.settle()
    if not whole:
        world = world_.world()
        parts = Parts(
            mesh,
            layout,
            variable.shape,
            variable.dtype,
            devices=[_device(world, number) for number in mesh.devices],
            name=variable.name.removesuffix(":0"),
        )
        pieces = parts.cut(variable.logical_value())
        variable.store_in_parts(parts, pieces, Exchange(variable.name) if world.distributed else None)
        moves.count += 1
    elif variable.in_parts:
        variable.store_whole(variable.logical_value())
        moves.count += 1
    variable._layout, variable._mesh = layout, mesh
    return storage(variable)


def _device(world: world_.World, number: int) -> str | None:
    """The TensorFlow device of a part, None if another process has it."""
    if world.distributed:
        return world.devices[0] if number == world.rank else None
    return world.devices[number]


def _check(variable: LaidOutVariable, layout: Layout, mesh: Mesh) -> None:
    name, shape = variable.name, variable.shape
    if len(layout) != len(mesh.axes):
        raise ValueError(f"{name}: layout {format_layout(layout)} has not one entry per axis of the mesh {mesh.text()}")
    world = world_.world()
    if max(mesh.devices) >= world.size:
        raise ValueError(f"{name}: the mesh {mesh.text()} uses device {max(mesh.devices)}; there are {world.size}")
    if any(sbp.is_split for sbp in layout) and not shape.is_fully_defined():
        raise ValueError(f"{name} has the shape {shape}; only a variable whose shape is known can be split")
    for sbp in layout:
        if sbp.is_split and sbp.dim >= shape.rank:
            raise ValueError(f"{name} of shape {shape} has no dim {sbp.dim} to split as {format_layout(layout)}")
    whole = is_whole(layout)
    if not whole and math.prod(shape.as_list() if shape.rank else []) == 0:
        raise ValueError(f"{name} of shape {shape} has no elements to lay out")
