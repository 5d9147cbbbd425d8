"""The loops of a distributed model, over several processes: `fit`, `evaluate` and `predict` of all ranks are one.

All ranks shuffle alike, by the seed of the chief, and the chief alone shows how far they are.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import os
from collections.abc import Callable, Iterator
from typing import Any

import keras

from whaleish import tf_private
from whaleish.agreement import AGREE_TIMEOUT
from whaleish.keras.writing import without_writing
from whaleish.meeting import AbsentError, Meeting
from whaleish.world import world

LOOPS = ("fit", "evaluate", "predict")


def joined_loop(model: keras.Model, name: str) -> Callable[..., Any]:
    """A loop of the model as one of all ranks."""
    loop = getattr(model, name)
    signature = inspect.signature(loop)
    start = _Start(f"{name} of the model {model.name!r}")
    running = False

    @functools.wraps(loop)
    def joined(*args: Any, **kwargs: Any) -> Any:
        nonlocal running
        given = signature.bind(*args, **kwargs)
        if running or "_use_cached_eval_dataset" in kwargs:  # one that another one runs
            return loop(*args, **kwargs)
        if world().rank:
            given.arguments["verbose"] = 0
            given.arguments["callbacks"] = without_writing(given.arguments.get("callbacks"))
        running = True
        try:
            with start.shuffling_alike():
                return loop(*given.args, **given.kwargs)
        finally:
            running = False

    return joined


_serial = itertools.count()


class _Start:
    """Where all ranks begin a loop together. A rank that came alone, and gave up, may come again."""

    def __init__(self, what: str) -> None:
        self.what, self._name, self._times = what, f"whaleish.keras.loop.{next(_serial)}", itertools.count()
        self._meeting: Meeting[bytes] | None = None

    @contextlib.contextmanager
    def shuffling_alike(self) -> Iterator[None]:
        """While the context is open, random numbers of TensorFlow are the same on all ranks: the chief's."""
        own = tf_private.global_seed()
        if self._meeting is None:
            given = os.urandom(4) if own is None else (own % (1 << 32)).to_bytes(4, "big")
            self._meeting = Meeting(f"{self._name}.{next(self._times)}", given)
        try:
            chosen = self._meeting.attend(AGREE_TIMEOUT, lambda seeds: seeds[0])
        except AbsentError as error:
            raise AbsentError(
                f"{self.what}: {error} A distributed model's loops belong to all ranks together; call it on every rank"
            ) from error
        self._meeting = None
        seed = int.from_bytes(chosen, "big")
        with contextlib.nullcontext() if seed == own else tf_private.under_global_seed(seed):
            yield
