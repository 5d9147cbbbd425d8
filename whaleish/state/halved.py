"""A variable that reads in half precision inside `wh.half()`."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from whaleish.capture.tf_private import inside_keras_call
from whaleish.scopes import ScopeError
from whaleish.scopes.half import computing_in
from whaleish.state.deferrable import DeferrableVariable


class HalvedVariable(DeferrableVariable):
    """A `tf.Variable` which, if it is a weight of float32, reads cast to the type of the `wh.half()` round the read.

    Weights are those that are trainable: statistics, counters and an optimizer's slots are not.

    Attributes:
      of_keras: whether a Keras variable has it, which then casts what is read itself, or does not.
    """

    of_keras = False

    @property
    def _half(self) -> tf.DType | None:
        """In which type it reads now, if that is another than its own."""
        return None if self.of_keras else self._asked_for()

    def _asked_for(self) -> tf.DType | None:
        dtype = computing_in()
        return tf.as_dtype(dtype) if dtype is not None and self.trainable and self.dtype == tf.float32 else None

    def refuse_in_half(self, method: str) -> None:
        """Raises where what is assigned would be made of rounded reads. Keras's layers may: they know their types."""
        if self._asked_for() is not None and not (self.of_keras and inside_keras_call()):
            raise ScopeError(
                f"{method} of {self.name} inside wh.half({computing_in()!r}): an update made of weights in half "
                "precision would lose their digits. Put the gradients and the optimizer after the scope"
            )

    def value(self) -> tf.Tensor:
        return self._halved(super().value())

    def read_value(self) -> tf.Tensor:
        return self._halved(super().read_value())

    def sparse_read(self, indices: Any, name: str | None = None) -> tf.Tensor:
        return self._halved(super().sparse_read(indices, name))

    def gather_nd(self, indices: Any, name: str | None = None) -> tf.Tensor:
        return self._halved(super().gather_nd(indices, name))

    def _halved(self, read: tf.Tensor) -> tf.Tensor:
        dtype = self._half
        return read if dtype is None else tf.cast(read, dtype)

    def _dense_var_to_tensor(self, dtype: tf.DType | None = None, name: str | None = None, as_ref: bool = False) -> Any:
        half = self._half
        if half is None:
            return super()._dense_var_to_tensor(dtype, name, as_ref)
        if dtype is not None and not dtype.is_compatible_with(half):
            raise ValueError(
                f"{self.name} reads as {half.name} inside wh.half({half.name!r}), and an op needs {dtype.name}. Cast "
                f"the op's other inputs with tf.cast(x, {half.name!r}), or read the variable inside wh.half(None)"
            )
        return self.value()
