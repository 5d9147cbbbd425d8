"""First values of large variables, made in one buffer.

Eagerly, Keras's random initializers hold three tensors of the variable's size at once: the numbers drawn, their
product with a scale, and the sum with an offset. Inside a function TensorFlow works in place. So a [512, 100000] kernel
costs 205 MB while it is made, and not 615 MB (measured); its values are the same, bit for bit.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from whaleish.state import tf_private

LARGE = 16 << 20
"""Elements from which it is worth tracing a function, which takes 20 ms."""

# By exact type: what these compute depends on their seed alone, and running them has no other effect.
_PURE = tuple(
    getattr(keras.initializers, name)
    for name in (
        "GlorotNormal",
        "GlorotUniform",
        "HeNormal",
        "HeUniform",
        "LecunNormal",
        "LecunUniform",
        "RandomNormal",
        "RandomUniform",
        "TruncatedNormal",
        "VarianceScaling",
    )
)


_CONSTANT = tuple(getattr(keras.initializers, name) for name in ("Constant", "Ones", "Zeros"))


@dataclass(frozen=True)
class KerasInitial:
    """What is known of an initial value that a variable of Keras's has given to TensorFlow.

    Attributes:
      pure: whether it is known to depend on nothing that changes, and to change nothing.
    """

    initializer: Any
    shape: tuple[int, ...]

    @property
    def pure(self) -> bool:
        return type(self.initializer) in _CONSTANT or self.random

    @property
    def number(self) -> int | None:
        """What it is full of, if that is 0 or 1."""
        return {keras.initializers.Zeros: 0, keras.initializers.Ones: 1}.get(type(self.initializer))

    @property
    def random(self) -> bool:
        """Whether it is one of those that draw, from a seed that is a number."""
        return type(self.initializer) in _PURE and isinstance(self.initializer.seed, int)


def of_keras(initial: Callable[[], Any]) -> KerasInitial | None:
    """What is known of an initial value, if it is Keras's and of a known shape."""
    # Keras gives `tf.Variable` a closure over its own variable, whose shape is set, and the initializer.
    if not (inspect.isfunction(initial) and (initial.__module__ or "").startswith("keras.")):
        return None
    inside = inspect.getclosurevars(initial).nonlocals
    variable = inside.get("self")
    shape = getattr(variable, "shape", None) if isinstance(variable, keras.Variable) else None
    if shape is None or None in shape:
        return None
    return KerasInitial(inside.get("initializer"), tuple(shape))


def in_one_buffer(initial: Callable[[], Any]) -> Callable[[], Any]:
    """The same initial value, computed in place if it is a large one of a known initializer of Keras's."""
    known = of_keras(initial)
    large = known is not None and known.random and math.prod(known.shape) >= LARGE
    return (lambda: _in_place(initial)) if large else initial


def _in_place(initial: Callable[[], Any]) -> tf.Tensor:
    function = tf.function(initial, autograph=False).get_concrete_function()
    # TensorFlow's optimizer would compute it once more, to see whether it is a constant worth keeping.
    with tf_private.unoptimized():
        return function()
