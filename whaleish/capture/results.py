"""What a step returns: which of it are tensors, and how it is put together again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf


@dataclass(frozen=True)
class Output:
    """Stands for a flat output, by its number."""

    number: int

    def pack(self, flat: Sequence[Any]) -> Any:
        return flat[self.number]


@dataclass(frozen=True)
class Composite:
    """Stands for the flat outputs that a ragged, sparse or other composite tensor is made of."""

    number: int
    count: int
    spec: Any

    def pack(self, flat: Sequence[Any]) -> Any:
        return tf.nest.pack_sequence_as(
            self.spec, list(flat[self.number : self.number + self.count]), expand_composites=True
        )


@dataclass(frozen=True)
class Constant:
    """Stands for what the step returned as a Python object."""

    value: Any

    def pack(self, flat: Sequence[Any]) -> Any:
        return self.value


class Results:
    """Takes the returned structure apart while the step is traced, and packs it again from flat values.

    Numbers and arrays become tensors, as in `tf.function`; None and what no tensor can hold are returned as they are.

    Attributes:
      structure: what the step returned, with an `Output`, `Composite`, `Constant` or None in the place of each leaf.
    """

    def __init__(self) -> None:
        self.structure: Any = None

    @tf.autograph.experimental.do_not_convert
    def take(self, returned: Any) -> list[tf.Tensor]:
        """The flat tensors of what the step returned."""
        flat: list[tf.Tensor] = []
        self.structure = tf.nest.map_structure(lambda leaf: self._take_leaf(leaf, flat), returned)
        return flat

    def _take_leaf(self, leaf: Any, flat: list[tf.Tensor]) -> Any:
        if leaf is None or isinstance(leaf, tf.Operation):
            return None
        first = len(flat)
        if isinstance(leaf, tf.__internal__.CompositeTensor) and not isinstance(leaf, tf.Variable):
            flat += tf.nest.flatten(leaf, expand_composites=True)
            return Composite(first, len(flat) - first, tf.type_spec_from_value(leaf))
        try:
            flat.append(tf.convert_to_tensor(leaf))
        except (TypeError, ValueError):
            return Constant(leaf)
        return Output(first)

    def pack(self, flat: Sequence[Any]) -> Any:
        """What the step returns, with these values in the places of its flat outputs."""
        return tf.nest.map_structure(lambda leaf: None if leaf is None else leaf.pack(flat), self.structure)
