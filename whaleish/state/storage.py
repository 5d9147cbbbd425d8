"""Where a variable's storage is, and how to move it."""

from __future__ import annotations

from dataclasses import dataclass

import tensorflow as tf

from whaleish import world as world_
from whaleish.mesh import Mesh
from whaleish.offloading import HOST
from whaleish.sbp import Layout, format_layout, is_whole
from whaleish.state.assigned import note_move
from whaleish.state.parts import Parts
from whaleish.state.ranks import Exchange
from whaleish.state.variable import LENT, LaidOutVariable


@dataclass(frozen=True)
class Storage:
    """How a variable is stored.

    Attributes:
      layout, mesh: as given to `lay_out`; `()` and None if it never was.
      parts: the numbers of the mesh's parts that are stored in this process: all of them when it is alone; over several
        processes one, or none where the mesh has not the device of this process. `(0,)` if it never was laid out.
      handles: the resource handle of each of `parts`. Parts that hold the same piece have the same handle, on the
        device of the first of them; of a variable in place all have its own.
    """

    layout: Layout
    mesh: Mesh | None
    parts: tuple[int, ...]
    handles: tuple[tf.Tensor, ...]

    @property
    def whole(self) -> bool:
        """Whether each part has the whole; in place or not."""
        return is_whole(self.layout)

    def handle_of(self, part: int) -> tf.Tensor:
        """The handle that a part of this process uses; -1 for what all of them hold alike."""
        return self.handles[0 if part < 0 else self.parts.index(part)]


def storage(variable: tf.Variable) -> Storage:
    """How `variable` is stored in this process. Ends a loan of its whole to a plain function."""
    if isinstance(variable, LaidOutVariable):
        if variable.in_parts:
            variable.settle()
            parts = variable.parts
            handles = tuple(resource.handle for resource in parts.resources)
            return Storage(parts.layout, parts.mesh, parts.numbers, handles)
        if variable._mesh is not None:
            here = _parts_here(variable._mesh)
            return Storage(variable._layout, variable._mesh, here, (variable.handle,) * len(here))
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
        f"{variable.name} cannot be laid out as {format_layout(layout) or 'one piece'}: it was made before wh.init(), "
        "after keras.utils.clear_session(), in another thread, or inside a tf.function. Call wh.init() first, and "
        "again after clear_session and in other threads, then make the model and the optimizer."
    )


def settle_all() -> None:
    """Ends all loans, so that every variable in parts is where `storage` says. To call before each step; cheap."""
    if LENT:
        for variable in list(LENT.values()):
            variable.settle()


def lay_out(variable: tf.Variable, layout: Layout, mesh: Mesh, on_host: bool = False) -> Storage:
    """Stores a variable so, keeping its value, and frees the storage it had. Of a deferred one this makes the value.

    What is whole on all devices of the world is *in place*: the variable's own storage, under its own handle, on every
    rank. Nothing is copied then, unless the variable was in parts before. All else lies in the parts of the mesh, and
    devices that the mesh has not store nothing: what is whole on some devices is on the first of them when the process
    is alone (in place, if that is where it is anyway), and over several processes each of those ranks has a copy.

    What is to lie `on_host` is in the host's memory, in the same parts; where devices are CPUs that may be where it is.

    Over several processes all ranks must call it, whether the mesh has their devices or not; leaving parts is a
    collective.

    Raises:
      ValueError: the layout does not fit the mesh or the shape, or the variable cannot be laid out.
    """
    _check_mesh(variable.name, layout, mesh)
    in_place = _in_place(variable, layout, mesh, on_host)
    if not isinstance(variable, LaidOutVariable):
        if in_place:
            return storage(variable)
        raise not_laid_out(variable, layout)
    _check_shape(variable, layout, in_place)
    if variable.in_parts and variable.parts.are_as(layout, mesh, _devices(mesh, on_host)):
        return storage(variable)
    variable.settle()
    if not in_place:
        _move_into_parts(variable, layout, mesh, on_host)
        moves.count += 1
    elif variable.in_parts:
        variable.store_in_place(variable.logical_value())
        moves.count += 1
    else:
        variable.initialise()
    variable._layout, variable._mesh = layout, mesh
    return storage(variable)


def _move_into_parts(variable: LaidOutVariable, layout: Layout, mesh: Mesh, on_host: bool) -> None:
    world, devices = world_.world(), _devices(mesh, on_host)
    name = variable.name.removesuffix(":0")
    parts = Parts(mesh, layout, variable.shape, variable.dtype, devices=devices, name=name)
    if variable.deferred:
        pieces = parts.cut(variable.recipe.value()) if parts.numbers else []
    else:
        whole = variable.logical_value()
        if world.distributed and not variable.in_parts:
            note_move(variable, whole)
        pieces = parts.cut(whole)
        del whole  # it may be the storage that is freed next
    variable.store_in_parts(parts, pieces, Exchange(variable.name) if world.distributed else None)


def _devices(mesh: Mesh, on_host: bool) -> dict[int, str]:
    """Where each part of a mesh that lives in this process is stored."""
    world = world_.world()
    own = {part: world.devices[0 if world.distributed else mesh.device(part)] for part in _parts_here(mesh)}
    return dict.fromkeys(own, HOST) if on_host else own


def _parts_here(mesh: Mesh) -> tuple[int, ...]:
    """The parts of a mesh that live in this process."""
    world = world_.world()
    return tuple(part for part in range(mesh.size) if not world.distributed or mesh.device(part) == world.rank)


def _in_place(variable: tf.Variable, layout: Layout, mesh: Mesh, on_host: bool) -> bool:
    """Whether the variable's own storage is where the layout wants it; the same on all ranks."""
    world = world_.world()
    if on_host and not variable.handle.device.endswith(HOST):
        return False
    device = HOST if on_host else world.devices[0 if world.distributed else mesh.devices[0]]
    there = not world.distributed and variable.handle.device.endswith(device)
    return is_whole(layout) and (there or len(mesh.devices) == world.size)


def _check_mesh(name: str, layout: Layout, mesh: Mesh) -> None:
    size = world_.world().size
    if len(layout) != len(mesh.axes):
        raise ValueError(
            f"{name}: the layout {format_layout(layout) or '()'} is not for the mesh {mesh.text() or 'without axes'}; "
            "give one entry per axis"
        )
    if max(mesh.devices) >= size:
        raise ValueError(f"{name}: the mesh has device {max(mesh.devices)}; there are {size}, from 0")


def _check_shape(variable: LaidOutVariable, layout: Layout, in_place: bool) -> None:
    name, shape = variable.name, variable.shape
    if not shape.is_fully_defined():
        if any(sbp.is_split for sbp in layout):
            raise ValueError(f"{name} has the shape {shape}; only a variable whose shape is known can be split")
        if world_.world().distributed and not in_place:
            raise ValueError(
                f"{name} has the shape {shape}; over several processes only a variable whose shape is known can lie "
                "elsewhere than whole on all of them"
            )
    for sbp in layout:
        if sbp.is_split and sbp.dim >= shape.rank:
            raise ValueError(f"{name} of shape {shape} has no dim {sbp.dim} to split as {format_layout(layout)}")
    if shape.num_elements() == 0 and not is_whole(layout):
        raise ValueError(f"{name} of shape {shape} has no elements to lay out")
