"""Transports: how registers get from one process to another."""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol


class Transfer(NamedTuple):
    """What both ends call one use of a register at the receiver.

    Printed, it is the name by which its ends find each other.

    Attributes:
      sender, receiver: the actors at its ends.
      slot: of the receiver's register. As a register is filled again only when it is free, no two transfers of the
        same name are ever under way at once.
      firing: of both. It is no part of the name, but may say what is moved: micro-batches differ in length.
    """

    sender: str
    receiver: str
    slot: int
    firing: int

    def __str__(self) -> str:
        return f"{self.sender}>{self.receiver}.{self.slot}"


class Aborted(RuntimeError):
    """A transfer was given up because the run failed elsewhere."""

    def __init__(self) -> None:
        super().__init__("the run has ended, and this transfer has not taken place")


class Transport(Protocol):
    """Moves values between two actors.

    The receiver posts when it has a free register, the sender when a register is filled. Nothing moves before both
    have, and then both waits end. Posting does not block. All methods are called from several threads.
    """

    def post_receive(self, transfer: Transfer) -> Any:
        """Announces that there is room; returns what to wait for."""

    def post_send(self, transfer: Transfer, values: Sequence[Any]) -> Any:
        """Announces values; returns what to wait for."""

    def wait(self, posted: Any) -> Sequence[Any]:
        """Blocks until the transfer is over, and returns its values.

        Raises:
          Aborted: `abort` was called before that, or the transport's own error if the other end is gone.
        """

    def abort(self) -> None:
        """Makes every wait end, now and in future."""


class _Posted:
    """One end of a transfer; `values` is None for the receiver's, until the sender's has come."""

    __slots__ = ("done", "matched", "values")

    def __init__(self, values: Sequence[Any] | None) -> None:
        self.values, self.matched, self.done = values, False, threading.Event()


class InProcess:
    """Both ends in one process: values are handed over as they are."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[str, deque[_Posted]] = defaultdict(deque)
        self._aborted = False

    def post_receive(self, transfer: Transfer) -> _Posted:
        return self._post(transfer, _Posted(None))

    def post_send(self, transfer: Transfer, values: Sequence[Any]) -> _Posted:
        return self._post(transfer, _Posted(values))

    def _post(self, transfer: Transfer, mine: _Posted) -> _Posted:
        with self._lock:
            waiting = self._waiting[str(transfer)]
            if waiting and (waiting[0].values is None) != (mine.values is None):
                other = waiting.popleft()
                mine.values = other.values = other.values if mine.values is None else mine.values
                for posted in (mine, other):
                    posted.matched = True
                    posted.done.set()
            else:
                waiting.append(mine)
                if self._aborted:
                    mine.done.set()
        return mine

    def wait(self, posted: _Posted) -> Sequence[Any]:
        posted.done.wait()
        if not posted.matched or posted.values is None:
            raise Aborted
        return posted.values

    def abort(self) -> None:
        with self._lock:
            self._aborted = True
            for waiting in self._waiting.values():
                for posted in waiting:
                    posted.done.set()
