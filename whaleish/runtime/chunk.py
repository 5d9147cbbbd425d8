"""Chunks: the work that an actor does when it fires."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

Work = Callable[[list[Any], int], Sequence[Any]]
"""From the inputs of a firing and its number to its outputs, which may be any objects."""


@dataclass(frozen=True)
class Chunk:
    """What an actor does.

    Attributes:
      work: takes the actor's inputs, with its state behind them, and the number of the firing, which is the micro-batch
        or, for what fires once, 0; returns its outputs, with the new state behind them.
      state: makes the state with which a run begins; None for a chunk without. A sum over micro-batches is a state:
        the chunk adds to it, and who reads its last value reads the whole sum.
      source: of an error that the work raised the line of the user's ("train.py:24"); "" where that is unknown.
    """

    work: Work
    state: Callable[[], Sequence[Any]] | None = None
    source: Callable[[BaseException], str] = lambda _: ""
