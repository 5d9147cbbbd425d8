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

    TensorFlow keeps creators per thread and lets a `tf.function` put its own first, so variables that are made in
    another thread, or in a function outside `tf.init_scope`, do not come by here.
    """
    with tf.init_scope():
        eager = tf.executing_eagerly()
    if not eager or arguments.get("variable_def") is not None or tf.distribute.has_strategy():
        return next_creator(**arguments)
    return LaidOutVariable(**{name: value for name, value in arguments.items() if name in _ARGUMENTS})


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
