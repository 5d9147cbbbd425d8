"""TensorFlow's own methods of a variable, made to work on one without whole storage, and to tell what they change."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from whaleish.state.assigned import note
from whaleish.state.tf_private import ResourceVariable

if TYPE_CHECKING:
    from whaleish.state.variable import LaidOutVariable


def through_the_whole(name: str) -> Callable:
    """A method that brings the whole back, has TensorFlow's own method work on it, and scatters the result."""
    inherited = getattr(ResourceVariable, name)

    @functools.wraps(inherited)
    def method(self: LaidOutVariable, *arguments: Any, **keywords: Any) -> Any:
        self.ensure_made()
        if not (self.in_parts and tf.executing_eagerly()):
            return inherited(self, *arguments, **keywords)
        with self.whole_for_a_while():
            result = inherited(self, *arguments, **keywords)
            # TensorFlow's answer reads the handle when asked, which by then has no storage.
            return self if isinstance(result, tf.Variable) else result

    return method


def noted(method: Callable) -> Callable:
    """The method, which tells that the program changed the variable."""

    @functools.wraps(method)
    def noting(self: LaidOutVariable, *arguments: Any, **keywords: Any) -> Any:
        self.refuse_in_half(method.__name__)
        before = self.assignments.count
        result = method(self, *arguments, **keywords)
        if tf.executing_eagerly() and self.assignments.count == before:  # one noted method may use another
            note(self)
        return result

    return noting
