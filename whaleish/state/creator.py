"""The variable creator that `wh.init()` and calls of steps add, each on its thread, and that stays."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from whaleish.state import functions, tf_private
from whaleish.state.deferred import first_value
from whaleish.state.first import in_one_buffer, of_keras
from whaleish.state.recipe import Recipe
from whaleish.state.tf_private import ResourceVariable
from whaleish.state.variable import LaidOutVariable

_ARGUMENTS = frozenset(inspect.signature(ResourceVariable.__init__).parameters) - {"self"}


def create(next_creator: Callable[..., tf.Variable], **arguments: Any) -> tf.Variable:
    """Makes a variable that can be laid out; where it cannot, what TensorFlow would have made.

    TensorFlow keeps creators per thread, so what a thread makes before its first `install` does not come by here. In a
    `tf.function`, one with an initializer is made outside of it, as Keras's slots are in its first step; one with a
    value is the function's own affair. Those without either are the SavedModel loader's.
    """
    initial = arguments.get("initial_value")
    if initial is None or tf.distribute.has_strategy() or not (tf.executing_eagerly() or callable(initial)):
        return next_creator(**arguments)
    keywords = {name: value for name, value in arguments.items() if name in _ARGUMENTS}
    with tf.init_scope():
        if tf.executing_eagerly():  # not so in a tf.Graph of TensorFlow 1's
            if callable(initial):
                first = first_value(initial, keywords)
                keywords["initial_value"] = first if isinstance(first, Recipe) else in_one_buffer(first)
            variable = LaidOutVariable(**keywords)
            variable.of_keras = callable(initial) and of_keras(initial) is not None
            return variable
    return next_creator(**arguments)


def install() -> None:
    """Makes `tf.Variable(...)` of this thread return variables that can be laid out. Cheap to repeat.

    The creator belongs to the default graph. Each thread has its own, and `keras.utils.clear_session()` replaces it; so
    whatever the user calls before making variables should call this again.
    """
    with tf.init_scope():
        tf_private.add_variable_creator(create)
    functions.watch()


def uninstall() -> None:
    """Undoes `install` on this thread; for tests."""
    with tf.init_scope():
        tf_private.remove_variable_creator(create)
    functions.unwatch()
