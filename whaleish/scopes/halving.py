"""Entering `wh.half`: variables and layers of Keras follow it by Keras's own scope, `tf.Variable`s by asking for it."""

from __future__ import annotations

from contextlib import ExitStack
from contextvars import ContextVar

from whaleish.capture import tf_private
from whaleish.scopes import keras_private
from whaleish.scopes.building import setting
from whaleish.scopes.half import computing_in
from whaleish.scopes.nesting import ScopeError


def halving(dtype: str | None, computing: ContextVar[str | None]) -> ExitStack:
    """From now on weights read in this type on this thread; until what is returned is closed.

    Raises:
      ScopeError: no function is being traced, and no layer called.
    """
    if tf_private.traced_graph() is None and not tf_private.inside_keras_call():
        raise ScopeError(
            f"wh.half({dtype!r}) was entered outside any traced function, where ops read variables without asking. "
            "Enter it inside the function given to wh.function or tf.function, or in a Keras layer's `call`; layers "
            f"that always compute so are made with dtype='mixed_{dtype or 'bfloat16'}'"
        )
    keras_private.watch_compute_types(_compute_type)
    undo = ExitStack()
    undo.enter_context(setting(computing, dtype))
    undo.enter_context(keras_private.autocast(dtype))
    return undo


def _compute_type(compute: str, variables: str, quantized: bool) -> str:
    """The type in which a layer computes, by the types of its policy."""
    plain = compute == variables == "float32" and not quantized
    return (computing_in() or compute) if plain else compute
