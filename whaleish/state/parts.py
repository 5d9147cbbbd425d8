"""The parts of one laid-out tensor that this process stores, and the whole that they make up."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import tensorflow as tf

from whaleish.meeting import name_ranks
from whaleish.mesh import Mesh
from whaleish.sbp import Layout, format_layout, is_whole
from whaleish.state import tf_private, wire

_MERGE = {"P": tf.add_n, "Pmax": lambda parts: _fold(tf.maximum, parts), "Pmin": lambda parts: _fold(tf.minimum, parts)}


def _fold(function: Callable, values: Sequence[tf.Tensor]) -> tf.Tensor:
    result = values[0]
    for value in values[1:]:
        result = function(result, value)
    return result


def owners(mesh: Mesh, layout: Layout) -> tuple[int, ...]:
    """The parts whose pieces, merged, are the whole tensor; each piece once."""
    return tuple(part for part in range(mesh.size) if mesh.first_alike(part, layout) == part)


def merge(mesh: Mesh, layout: Layout, value_of: Callable[[int], tf.Tensor]) -> tf.Tensor:
    """The logical tensor, from the pieces of its `owners`."""

    def under(prefix: tuple[int, ...]) -> tf.Tensor:
        depth = len(prefix)
        if depth == len(mesh.axes):
            return value_of(mesh.number(prefix))
        axis, sbp = mesh.axes[depth], layout[depth]
        if sbp.is_broadcast or axis.size == 1:
            return under((*prefix, 0))
        values = [under((*prefix, position)) for position in range(axis.size)]
        return tf.concat(values, sbp.dim) if sbp.is_split else _MERGE[sbp.kind](values)

    return under(())


def piece(mesh: Mesh, layout: Layout, part: int, whole: tf.Tensor) -> tf.Tensor:
    """What a part holds of a logical tensor. Of a partial sum, the first part holds all and the others zero."""
    starts, lengths = zip(*mesh.pieces(whole.shape, layout, part), strict=True) if whole.shape.rank else ((), ())
    coordinate = mesh.coordinate(part)
    if any(sbp.kind == "P" and position for sbp, position in zip(layout, coordinate, strict=True)):
        return tf.zeros(lengths, whole.dtype)
    local = whole if tuple(lengths) == tuple(whole.shape) else tf.slice(whole, starts, lengths)
    # TensorFlow's slice of leading rows is a view, which would keep the whole buffer alive.
    return tf.raw_ops.DeepCopy(x=local) if tuple(lengths[1:]) == tuple(whole.shape[1:]) else local


def _copy(mesh: Mesh, layout: Layout, part: int, whole: tf.Tensor) -> np.ndarray:
    """`piece`, outside of TensorFlow's memory."""
    if any(sbp.is_partial for sbp in layout):
        return piece(mesh, layout, part, whole).numpy()
    slices = tuple(slice(start, start + length) for start, length in mesh.pieces(whole.shape, layout, part))
    return wire.view(whole)[slices].copy()


class Parts:
    """The pieces that this process stores of a tensor that lies in the parts of a mesh; each may be the whole.

    Attributes:
      numbers: the parts of the mesh that live here, in order; none, where all live on other ranks.
      resources: the storage of each of `numbers`. Parts that hold the same piece share it, on the first's device.
    """

    def __init__(
        self,
        mesh: Mesh,
        layout: Layout,
        shape: tf.TensorShape,
        dtype: tf.DType,
        *,
        devices: Mapping[int, str],
        name: str,
    ) -> None:
        """Makes storage, yet without values, for each part that lives here, on its device: `devices[part]`."""
        self.mesh, self.layout, self.shape, self.dtype = mesh, layout, shape, dtype
        self.numbers, self._devices = tuple(devices), dict(devices)
        made: dict[int, tf_private.Resource] = {}
        for part in self.numbers:
            key = mesh.first_alike(part, layout)
            if key not in made:
                # The shape of what is whole need not be known.
                local = shape if is_whole(layout) else tf.TensorShape(mesh.local_shape(shape, layout, part))
                made[key] = tf_private.Resource(local, dtype, devices[part], f"{name}/part_{part}")
        self.resources = tuple(made[mesh.first_alike(part, layout)] for part in self.numbers)
        self._stored = {
            part: resource for part, resource in reversed(tuple(zip(self.numbers, self.resources, strict=True)))
        }

    def are_as(self, layout: Layout, mesh: Mesh, devices: Mapping[int, str]) -> bool:
        """Whether they lie so; `devices` as they were given."""
        return (self.layout, self.mesh, self._devices) == (layout, mesh, devices)

    def distinct(self) -> list[tuple[int, tf_private.Resource]]:
        """Each storage once, with the first part that uses it."""
        seen: dict[int, tuple[int, tf_private.Resource]] = {}
        for part, resource in zip(self.numbers, self.resources, strict=True):
            seen.setdefault(id(resource), (part, resource))
        return list(seen.values())

    def read(self, part: int) -> tf.Tensor:
        """The piece of a part that lives here."""
        return self._stored[part].read()

    def store(self, part: int, value: tf.Tensor) -> None:
        """Sets the piece of a part that lives here."""
        self._stored[part].assign(value)

    def whole(self) -> tf.Tensor:
        """The logical value, when all parts live in this process."""
        return merge(self.mesh, self.layout, self.read)

    def write(self, whole: tf.Tensor) -> None:
        """Sets the parts that live here from the logical value, one after another."""
        for part, resource in self.distinct():
            resource.assign(piece(self.mesh, self.layout, part, whole))

    def cut(self, whole: tf.Tensor) -> list[np.ndarray]:
        """Copies of the parts that live here, to be given to `fill`.

        They are not TensorFlow's, for its allocator keeps for good what it once took from the system: parts that it
        made beside the whole would make the process larger for life.
        """
        return [_copy(self.mesh, self.layout, part, whole) for part, _ in self.distinct()]

    def fill(self, pieces: Sequence[np.ndarray]) -> None:
        """Sets the parts that live here."""
        for (_, resource), value in zip(self.distinct(), pieces, strict=True):
            resource.assign(tf.constant(value, self.dtype))

    def add(self, delta: tf.Tensor) -> None:
        """Adds a logical tensor; not for Pmax and Pmin."""
        for part, resource in self.distinct():
            coordinate = self.mesh.coordinate(part)
            places = zip(self.layout, coordinate, strict=True)
            if not any(sbp.kind == "P" and position for sbp, position in places):
                resource.assign_add(piece(self.mesh, self.layout, part, delta))

    @property
    def additive(self) -> bool:
        return all(sbp.kind not in ("Pmax", "Pmin") for sbp in self.layout)

    def where(self) -> str:
        """For people: `whole on device 2`, `in parts on devices 0, 1 (S(0) over a:2)`."""
        devices = f"device{'s' if len(self.mesh.devices) > 1 else ''} {name_ranks(self.mesh.devices)}"
        if is_whole(self.layout):
            return f"whole on {devices}"
        return f"in parts on {devices} ({format_layout(self.layout)} over {self.mesh.text()})"
