"""A meeting of all ranks: it takes place, or those who came raise. Nobody waits for ever.

It is two small collectives in a helper thread: all ranks say what they have, then whether they are still there. A rank
that waits too long gives up and raises; its first collective stays in flight. When the others come in the end, the
second collective tells them, and they raise as well; so ranks never get out of step.
"""

from __future__ import annotations

import collections
import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import numpy as np
import tensorflow as tf

from whaleish import world as world_

_T = TypeVar("_T")
_numbers: dict[str, int] = collections.defaultdict(int)


class DisagreementError(RuntimeError):
    """Ranks that should do the same do not."""


class AbsentError(DisagreementError):
    """Not all ranks came, or one had given up before the last came."""


class _Attempt(Generic[_T]):
    def __init__(self) -> None:
        self.lock, self.done = threading.Lock(), threading.Event()
        self.waiting = True  # until all ranks are here
        self.given_up = False
        self.result: _T
        self.error: BaseException | None = None


class Meeting(Generic[_T]):
    """A named occasion on which all ranks do something together.

    A rank that has given up and attends again before the others came takes its place again. The name must be equal on
    all ranks and belong to one `Meeting` only.
    """

    def __init__(self, name: str, message: bytes) -> None:
        """`message` is of the same length on all ranks."""
        self.name, self._message = name, np.frombuffer(message, np.uint8)
        self._pending: _Attempt[_T] | None = None

    @classmethod
    def numbered(cls, kind: str, message: bytes) -> Meeting[_T]:
        """The next meeting of a kind: the same one on all ranks that have had equally many."""
        _numbers[kind] += 1
        return cls(f"whaleish.{kind}.{_numbers[kind]}", message)

    def attend(self, timeout: float, then: Callable[[list[bytes]], _T]) -> _T:
        """Runs `then` on all ranks once all are here, and gives its result.

        Args:
          timeout: seconds to wait for the last rank. `then`, which may use collectives, has no limit of its own.
          then: gets the messages of all ranks, by rank.

        Raises:
          AbsentError: this rank waited too long; or another had, and had given up when this one came.
        """
        attempt = self._pending
        if attempt is None:
            attempt = self._pending = _Attempt()
            threading.Thread(target=self._meet, args=(attempt, then), name=self.name, daemon=True).start()
        with attempt.lock:
            attempt.given_up = False
        if not attempt.done.wait(timeout):
            with attempt.lock:
                attempt.given_up = attempt.waiting
            if attempt.given_up:
                raise AbsentError(f"not all {world_.size()} ranks came within {timeout:g} s.")
            attempt.done.wait()
        if attempt.error is not None:
            raise attempt.error
        return attempt.result

    def _meet(self, attempt: _Attempt[_T], then: Callable[[list[bytes]], _T]) -> None:
        try:
            try:
                messages = gather_rows(f"{self.name}.here", self._message)
            except tf.errors.OpError as error:
                raise AbsentError(f"another rank has ended while this one waited for it ({error.message}).") from error
            with attempt.lock:
                attempt.waiting = False
                gone = attempt.given_up
            gone_ranks = np.flatnonzero(gather_rows(f"{self.name}.stay", np.array([gone], np.uint8))[:, 0])
            if gone_ranks.size:
                who = name_ranks(gone_ranks.tolist())
                raise AbsentError(f"rank {who} came first, waited, and had given up when the last rank came.")
            attempt.result = then([row.tobytes() for row in messages])
        except BaseException as error:  # handed to the thread that waits
            attempt.error = error
        finally:
            self._pending = None
            attempt.done.set()


def name_ranks(ranks: Sequence[int]) -> str:
    """`0, 2, 5`; at most eight of them."""
    return ", ".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")


def gather_rows(name: str, row: np.ndarray) -> np.ndarray:
    """The rows of all ranks, by rank. Blocks until all ranks call it with a row of the same length."""
    return all_gather(name, tf.constant(row)).numpy().reshape(world_.size(), *row.shape)


def share(name: str, data: bytes) -> list[bytes]:
    """The bytes of all ranks, by rank, of any length. Blocks until all ranks call it."""
    sizes = gather_rows(f"{name}.size", np.array([len(data)], np.int64))[:, 0]
    blob = all_gather(f"{name}.data", tf.constant(np.frombuffer(data, np.uint8))).numpy()
    return [part.tobytes() for part in np.split(blob, np.cumsum(sizes)[:-1])]


def all_gather(name: str, flat: tf.Tensor) -> tf.Tensor:
    """The flat tensors of all ranks, one after another. Blocks until all ranks call it with this name."""
    return _operation("allgather", name, flat.dtype)(flat)


def broadcast(name: str, flat: tf.Tensor) -> tf.Tensor:
    """The flat tensor of rank 0. Blocks until all ranks call it with this name."""
    return _operation("broadcast", name, flat.dtype)(flat)


@functools.lru_cache(maxsize=256)
def _operation(kind: str, name: str, dtype: tf.DType) -> Any:
    """One of Horovod's operations as a graph, where it can have a name.

    Eagerly all operations of a type have the type's name, so that no two of them can be in flight (measured).
    """
    import horovod.tensorflow as hvd

    options = {"broadcast": {"root_rank": 0}}.get(kind, {})

    @tf.function(input_signature=[tf.TensorSpec([None], dtype)], autograph=False)
    def run(tensor: tf.Tensor) -> tf.Tensor:
        with tf.device("/device:CPU:0"):
            return getattr(hvd, kind)(tensor, name=name, **options)

    return run.get_concrete_function()
