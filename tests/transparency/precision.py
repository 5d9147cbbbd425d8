"""The type that Keras computes in, for a while."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import keras


@contextlib.contextmanager
def computing_in(dtype: str) -> Iterator[None]:
    """Layers made inside have weights of this type and compute in it. No decorator of what ranks are sent."""
    before, policy = keras.backend.floatx(), keras.config.dtype_policy()
    keras.backend.set_floatx(dtype)
    keras.config.set_dtype_policy(dtype)  # Keras takes it from floatx at its first use only
    try:
        yield
    finally:
        keras.backend.set_floatx(before)
        keras.config.set_dtype_policy(policy)
