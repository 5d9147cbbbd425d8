"""The objects that a checkpoint is of: their values, by key, and where each value of a file belongs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from whaleish.checkpoint import tf_private
from whaleish.checkpoint.slices import Bounds, Held, Piece
from whaleish.sbp import format_layout
from whaleish.state import LaidOutVariable, assigned, settle_all, storage
from whaleish.state.parts import owners
from whaleish.world import world

DIVISIBLE = frozenset(
    (
        *(tf.bfloat16, tf.float32, tf.float64, tf.complex64, tf.complex128),
        *(tf.bool, tf.int8, tf.int16, tf.int32, tf.int64, tf.uint8, tf.qint8, tf.qint32, tf.quint8),
    )
)
"""Of which types TensorFlow reads slices (measured); others are stored whole."""


def root_of(objects: Any) -> tf.train.Checkpoint:
    """What TensorFlow makes a checkpoint of.

    Raises:
      TypeError: not what `tf.train.Checkpoint` takes.
    """
    if isinstance(objects, tf.train.Checkpoint):
        return objects
    remedy = 'give a dict of names and objects, such as {"model": model, "optimizer": optimizer}'
    if objects is None or (isinstance(objects, Mapping) and not objects):
        raise TypeError(f"objects={objects!r} is nothing to make a checkpoint of; {remedy}")
    named = isinstance(objects, Mapping)
    try:
        return tf.train.Checkpoint(**objects) if named else tf.train.Checkpoint(root=objects)
    except (AttributeError, TypeError, ValueError) as error:
        # Of what is no dict of objects TensorFlow says nothing that would help, and prints all values that it holds.
        reason = f" ({str(error).partition(' If you believe')[0]})" if named else ""
        raise TypeError(
            f"objects of type {type(objects).__name__} are not what a checkpoint can be made of{reason}; {remedy}"
        ) from None


def folder_of(directory: Any) -> Path:
    """A folder, as an absolute path: the program may go to another one while a thread writes.

    Raises:
      TypeError: no path. ValueError: one that is not of a file system.
    """
    if not isinstance(directory, str | os.PathLike):
        raise TypeError(f"directory={directory!r}: give the path of a folder")
    path = os.fspath(directory)
    if not path or "://" in path:
        raise ValueError(f"directory={path!r}: give a folder of a file system that all ranks share")
    return Path(os.path.abspath(path))


@dataclass(frozen=True)
class Value:
    """A value of a checkpoint.

    Attributes:
      key: its name in the file.
      owner: the object that it is of: a variable (TensorFlow's or Keras's) or another.
      variable: the `tf.Variable`, if it is the value of one.
      read: a tensor, or what gives one when called, of a value that no variable has.
    """

    key: str
    owner: Any
    variable: tf.Variable | None
    read: Any

    @property
    def laid_out(self) -> LaidOutVariable | None:
        return self.variable if isinstance(self.variable, LaidOutVariable) else None

    @property
    def gathered(self) -> bool:
        """Whether it must be made whole to be stored: summands, and pieces of a type of which there are no slices."""
        if self.laid_out is None or not self.laid_out.in_parts:
            return False
        parts = self.laid_out.parts
        whole = len(owners(parts.mesh, parts.layout)) == 1
        added = any(sbp.is_partial or sbp.is_local for sbp in parts.layout)
        return added or not (whole or parts.dtype in DIVISIBLE)

    def text(self) -> str:
        """What ranks must have alike."""
        if self.variable is None:
            return self.key
        where = "in place"
        if self.laid_out is not None and self.laid_out.in_parts:
            parts, exchange = self.laid_out.parts, self.laid_out.exchange
            devices = ",".join(map(str, parts.mesh.devices))
            where = f"{format_layout(parts.layout)} over {parts.mesh.text()} on {devices}"
            where += f" ({exchange.key})" if exchange is not None else ""
        return f"{self.key}: {self.variable.dtype.name} {self.variable.shape} {where}"


def values_of(root: tf.train.Checkpoint) -> tuple[list[Value], tf_private.ObjectGraph]:
    """All values below `root`, in an order that follows from the objects, and the object graph. Ends loans."""
    settle_all()
    found, graph = tf_private.serialized(root)
    return [Value(key, owner, _variable(owner), value) for owner, key, value in found], graph


def _variable(owner: Any) -> tf.Variable | None:
    inner = owner.value if isinstance(owner, keras.Variable) else owner
    return inner if isinstance(inner, tf.Variable) else None


def surely_equal(value: Value) -> bool:
    """Whether all ranks have the same in a variable in place, as far as this one knows: steps have seen to it."""
    variable = value.laid_out
    return variable is not None and storage(variable).mesh is not None and not assigned([variable])


def held(value: Value, everywhere: bool) -> Held:
    """How ranks hold a value.

    Args:
      everywhere: whether all ranks have what a variable in place has; else the chief's is taken.
    """
    here, variable = world(), value.laid_out
    if variable is None or value.gathered:
        return Held(None, 1, (Piece((), (0,)),), divisible=False)
    shape = tuple(variable.shape) if variable.shape.is_fully_defined() else None
    divisible = variable.dtype in DIVISIBLE and shape is not None
    size = max(1, variable.dtype.size)
    if not variable.in_parts:
        holders = tuple(range(here.processes)) if everywhere else (0,)
        return Held(shape, size, (Piece(_all_of(shape), holders),), divisible)
    mesh, layout = variable.parts.mesh, variable.parts.layout
    pieces = []
    for owner in owners(mesh, layout):
        parts = [part for part in range(mesh.size) if mesh.first_alike(part, layout) == owner]
        holders = tuple(sorted({mesh.device(part) for part in parts})) if here.distributed else (0,)
        bounds = _all_of(shape) if shape is None else mesh.pieces(shape, layout, owner)
        pieces.append(Piece(bounds, holders))
    return Held(shape, size, tuple(pieces), divisible)


def _all_of(shape: tuple[int, ...] | None) -> Bounds:
    return tuple((0, length) for length in shape or ())
