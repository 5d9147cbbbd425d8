"""First values of large variables, made in one buffer.

Eagerly, Keras's random initializers hold three tensors of the variable's size at once: the numbers drawn, their
product with a scale, and the sum with an offset. Inside a function TensorFlow works in place. So a [512, 100000] kernel
costs 205 MB while it is made, and not 615 MB (measured); its values are the same, bit for bit.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
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


def in_one_buffer(initial: Callable[[], Any]) -> Callable[[], Any]:
    """The same initial value, computed in place if it is a large one of a known initializer of Keras's."""
    return (lambda: _in_place(initial)) if _is_large_and_pure(initial) else initial


def _is_large_and_pure(initial: Callable[[], Any]) -> bool:
    # Keras gives `tf.Variable` a closure over its own variable, whose shape is set, and the initializer.
    if not (inspect.isfunction(initial) and (initial.__module__ or "").startswith("keras.")):
        return False
    inside = inspect.getclosurevars(initial).nonlocals
    initializer, variable = inside.get("initializer"), inside.get("self")
    shape = getattr(variable, "shape", None) if isinstance(variable, keras.Variable) else None
    known = type(initializer) in _PURE and isinstance(initializer.seed, int)
    return known and shape is not None and None not in shape and math.prod(shape) >= LARGE


def _in_place(initial: Callable[[], Any]) -> tf.Tensor:
    function = tf.function(initial, autograph=False).get_concrete_function()
    # TensorFlow's optimizer would compute it once more, to see whether it is a constant worth keeping.
    with tf_private.unoptimized():
        return function()
