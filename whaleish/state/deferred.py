"""`wh.deferred`: models that are built without weight memory; which variables wait for their layout."""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import tensorflow as tf

from whaleish.state.first import of_keras
from whaleish.state.recipe import Initial, Recipe, filled, is_large, recipe_or_initial, tracing


class Wanted(enum.IntEnum):
    """What is deferred of the variables that are made now."""

    NOTHING = 0
    SLOTS = 1
    """In a step that is being captured: what Keras's own initializers fill. The layout is known soon."""
    ALL = 2
    """Under `wh.deferred()`."""


_wanted: ContextVar[Wanted] = ContextVar("wanted", default=Wanted.NOTHING)


@contextlib.contextmanager
def deferred() -> Iterator[None]:
    """Variables that are made inside get their storage when their layout is known, and a model costs no memory before.

        with wh.deferred():
            model = build_model()               # a model of 100 GB costs nothing yet

        @wh.function
        def train_step(x, y): ...               # its first call fills each device's parts, one variable at a time

    Values are those that the model would have without it, bit for bit. Whatever needs a variable's value earlier, such
    as reading it, a checkpoint or a call of the model outside of a step, gets it: the variable is then made like any
    other. Small variables, and those whose initializer reads or changes anything (a random state, another variable),
    are made at once.

    Raises:
      RuntimeError: it was entered while a function is being traced, or before `wh.init()`.
    """
    from whaleish.state.creator import install  # they need this module
    from whaleish.world import world

    if not tf.executing_eagerly():
        raise RuntimeError(
            "wh.deferred() was entered while TensorFlow traces a function. Enter it in plain Python, round the "
            "building of a model; an optimizer's slots that a step makes in its first call are deferred anyway"
        )
    world()  # the creator is for its devices
    install()
    with _at_least(Wanted.ALL):
        yield


def while_capturing() -> contextlib.AbstractContextManager[None]:
    """The context in which a step is captured: slots that are made in it wait for the plan that follows."""
    return _at_least(Wanted.SLOTS)


@contextlib.contextmanager
def _at_least(wanted: Wanted) -> Iterator[None]:
    token = _wanted.set(max(wanted, _wanted.get()))
    try:
        yield
    finally:
        _wanted.reset(token)


def first_value(initial: Initial, keywords: dict[str, Any]) -> Recipe | Initial:
    """What to make a variable from: a recipe, if it is deferred.

    Args:
      initial: its initializer. keywords: the other arguments of `tf.Variable`.
    """
    wanted = Wanted.NOTHING if tracing.get() else _wanted.get()
    if not wanted or not _may_wait(initial, keywords):
        return initial
    known = of_keras(initial)
    dtype = keywords.get("dtype")  # Keras always gives it
    if known is not None and not is_large(known.shape, tf.as_dtype(dtype)):
        return initial
    if wanted is Wanted.SLOTS and (known is None or not known.pure):
        return initial
    if known is not None and known.number is not None:
        return filled(bool(known.number), known.shape, tf.as_dtype(dtype))
    found = recipe_or_initial(initial, dtype)
    shape = keywords.get("shape")
    if isinstance(found, Recipe) and shape is not None and not tf.TensorShape(shape).is_compatible_with(found.shape):
        return found.value  # TensorFlow says that they do not fit
    return found


def _may_wait(initial: Initial, keywords: dict[str, Any]) -> bool:
    """Whether the variable is of a kind that may: no metric, none whose shape changes, none with a copy elsewhere."""
    shape = keywords.get("shape")
    return not (
        hasattr(initial, "checkpoint_position")  # a checkpoint gives the value
        or keywords.get("aggregation") == tf.VariableAggregation.SUM  # of Keras's, metrics alone
        or keywords.get("caching_device") is not None
        or (shape is not None and not tf.TensorShape(shape).is_fully_defined())
    )
