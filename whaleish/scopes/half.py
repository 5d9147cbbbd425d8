"""`wh.half`: inside, weights of float32 read in half precision, and Keras's layers compute in it."""

from __future__ import annotations

import threading
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from whaleish.scopes.nesting import ScopeError

_TYPES = ("bfloat16", "float16")
_computing_in: ContextVar[str | None] = ContextVar("computing_in", default=None)
_open = threading.local()  # .entered: what ends each scope that is open on this thread, innermost last


@dataclass(frozen=True)
class HalfContext:
    """What `half()` returns: `with` it, as often and as deeply as you like.

    Attributes:
      dtype: in which weights read and layers compute inside; None for what they are stored in.
    """

    dtype: str | None

    def __enter__(self) -> None:
        # TensorFlow and Keras are imported here and not above, as for the scopes that annotate.
        from whaleish.scopes.halving import halving

        entered = halving(self.dtype, _computing_in)
        vars(_open).setdefault("entered", []).append(entered)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        _open.entered.pop().close()
        if isinstance(error, AttributeError) and error.name == "_unique_id":  # of a cast, where Keras wants a variable
            raise ScopeError(
                f"a Keras optimizer was applied inside {self}, where variables read in half precision. Put the "
                "gradients and the optimizer after the scope"
            ) from error

    def __str__(self) -> str:
        return f"wh.half({self.dtype!r})"


def half(dtype: Any = "bfloat16") -> HalfContext:
    """Weights of float32 read in half precision inside; what is stored, updated and sharded stays float32.

        with wh.half("bfloat16"), tf.GradientTape() as tape:
            hidden = tf.nn.relu(tf.cast(x, "bfloat16") @ w)          # a tf.Variable of float32
            loss = loss_of(labels, tf.cast(model(hidden), "float32"))   # layers made without a policy
        gradient = tape.gradient(loss, w)                               # of float32

    It is an effect of the trace and not of a plan, so the step means the same under a plain `tf.function`. Read so are
    trainable `tf.Variable`s that were made after `wh.init()`, and the variables of Keras that Keras casts under its
    mixed policies. Layers whose policy is "float32" compute as under "mixed_bfloat16" or "mixed_float16", those of any
    other as theirs says. Tensors are left as they are.

    Args:
      dtype: "bfloat16", "float16", or None, inside which everything reads and computes in float32 again.

    Raises:
      ScopeError: another type; entered outside a function that is traced; a weight is updated inside.
    """
    name = getattr(dtype, "name", dtype)
    if name is not None and name not in _TYPES:
        raise ScopeError(f"wh.half({dtype!r}): give 'bfloat16' or 'float16', or None to end it for what is inside")
    return HalfContext(name)


def computing_in() -> str | None:
    """The type in which weights read now; None outside of `wh.half()`."""
    return _computing_in.get()
