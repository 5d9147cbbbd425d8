"""The variable creator that `wh.init()` enters once and keeps open."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from whaleish.state import functions
from whaleish.state.tf_private import ResourceVariable
from whaleish.state.variable import LaidOutVariable

_ARGUMENTS = frozenset(inspect.signature(ResourceVariable.__init__).parameters) - {"self"}
_open = contextlib.ExitStack()
_installed = False


def create(next_creator: Callable[..., tf.Variable], **arguments: Any) -> tf.Variable:
    """Makes a variable that can be laid out; where it cannot, what TensorFlow would have made.

    TensorFlow keeps creators per thread, so variables that are made in another thread do not come by here. In a
    `tf.function`, one with an initializer is made outside of it, as Keras's slots are in its first step; one with a
    value is the function's own affair. Those without either are the SavedModel loader's.
    """
    initial = arguments.get("initial_value")
    if initial is None or tf.distribute.has_strategy() or not (tf.executing_eagerly() or callable(initial)):
        return next_creator(**arguments)
    keywords = {name: value for name, value in arguments.items() if name in _ARGUMENTS}
    with tf.init_scope():
        if tf.executing_eagerly():  # not so in a tf.Graph of TensorFlow 1's
            return LaidOutVariable(**keywords)
    return next_creator(**arguments)


def install() -> None:
    """Makes `tf.Variable(...)` of this thread return variables that can be laid out. Idempotent."""
    global _installed
    if not _installed:
        _open.enter_context(tf.variable_creator_scope(create))
        functions.watch()
        _installed = True


def uninstall() -> None:
    """Undoes `install`; for tests."""
    global _installed
    _open.close()
    functions.unwatch()
    _installed = False
