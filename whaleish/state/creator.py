"""The variable creator that `wh.init()` enters once and keeps open."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from whaleish.state import functions
from whaleish.state.first import in_one_buffer
from whaleish.state.tf_private import ResourceVariable
from whaleish.state.variable import LaidOutVariable

_ARGUMENTS = frozenset(inspect.signature(ResourceVariable.__init__).parameters) - {"self"}
_open = contextlib.ExitStack()
_graph: tf.Graph | None = None  # the default graph that has the creator


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
        if callable(initial):
            keywords["initial_value"] = in_one_buffer(initial)
        if tf.executing_eagerly():  # not so in a tf.Graph of TensorFlow 1's
            return LaidOutVariable(**keywords)
    return next_creator(**arguments)


def install() -> None:
    """Makes `tf.Variable(...)` of this thread return variables that can be laid out. Cheap to repeat.

    The creator belongs to the default graph, which `keras.utils.clear_session()` replaces; so whatever the user calls
    before making variables should call this again.
    """
    global _graph
    with tf.init_scope():
        graph = tf.compat.v1.get_default_graph()
        if graph is not _graph:
            _open.close()
            _open.enter_context(tf.variable_creator_scope(create))
            _graph = graph
    functions.watch()


def uninstall() -> None:
    """Undoes `install`; for tests."""
    global _graph
    _open.close()
    functions.unwatch()
    _graph = None
