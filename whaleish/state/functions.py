"""Plain `tf.function`s that captured a variable, and what happens when they run after it was laid out.

A traced function keeps the handle it captured, so while that handle has no whole storage the function cannot run.
While a variable lies in parts, or is deferred, the functions that captured its handle therefore ask for it at each
call, which brings the whole back under the same handle: TensorFlow's captured inputs may be callables, evaluated at
call time.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

import tensorflow as tf

from whaleish.rules.variables import READS
from whaleish.state import tf_private

if TYPE_CHECKING:
    from whaleish.state.variable import LaidOutVariable


class Loan:
    """A captured input in place of a handle: when the function is called, the variable is whole again."""

    def __init__(self, variable: LaidOutVariable, function: tf.types.experimental.ConcreteFunction, index: int) -> None:
        self._variable = weakref.ref(variable)
        self._handle = variable.handle
        readers = tf_private.captured_placeholders(function)[index].consumers()
        self._writes = any(op.type not in READS for op in readers)

    def __call__(self) -> tf.Tensor:
        variable = self._variable()
        # While an outer function is being traced nothing is read: that function captures the handle itself.
        if variable is not None and tf.executing_eagerly():
            variable.lend(writes=self._writes)
        return self._handle


def _on_trace(function: tf.types.experimental.ConcreteFunction) -> None:
    for captured in tf_private.captured_inputs(function):
        variable = tf_private.variable_of(captured)
        if variable is not None and hasattr(variable, "_readers"):
            variable._readers.add(function)
            if variable.in_parts or variable.deferred:
                ask_at_calls(variable)


def ask_at_calls(variable: LaidOutVariable) -> None:
    """Makes the functions that captured a variable ask for its whole storage at each call."""
    for function in list(variable._readers):
        inputs = tf_private.captured_inputs(function)
        for index, captured in enumerate(inputs):
            if captured is variable.handle:
                inputs[index] = Loan(variable, function, index)


def restore(variable: LaidOutVariable) -> None:
    """Gives the functions their handle back, when the variable is whole for good."""
    for function in list(variable._readers):
        inputs = tf_private.captured_inputs(function)
        for index, captured in enumerate(inputs):
            if isinstance(captured, Loan) and captured._handle is variable.handle:
                inputs[index] = captured._handle


def watch() -> None:
    tf_private.add_function_callback(_on_trace)


def unwatch() -> None:
    tf_private.remove_function_callback(_on_trace)
