"""A chunk: ops of a step that one stage runs together, as plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from whaleish.graph import LogicalGraph
from whaleish.planner.plan import Plan
from whaleish.runtime import EACH
from whaleish.sbp import B, Layout

FORWARD_TURN, BACKWARD_TURN, WEIGHT_TURN = 0, 1, 2
TURNS = "FBW"
"""The letters that schedules have for the turns."""


class Key(NamedTuple):
    """Which chunk: when it runs, where, and which of those it is.

    Attributes:
      phase: BEFORE, EACH or AFTER, as of actors.
      turn: of EACH, 0 for the forward, 1 for the backward, 2 for the part of it that no earlier stage waits for, where
        a schedule has that for itself; else how often data has crossed between stages before it.
    """

    phase: str
    stage: int
    turn: int = 0

    def __str__(self) -> str:
        if self.phase == EACH:
            return f"{TURNS[self.turn]}{self.stage}"
        return f"{self.phase} {self.stage}" + (f".{self.turn}" if self.turn else "")


class Give(NamedTuple):
    """Something that a chunk makes for others.

    Attributes:
      tensor: of the step's graph. layout: in which it is given.
      axis: None, or the axis of time over which all micro-batches' are put together: summands added up, pieces joined.
    """

    tensor: int
    layout: Layout
    axis: int | None = None

    @property
    def arrival(self) -> Layout:
        """The layout in which the reader has it."""
        if self.axis is None:
            return self.layout
        return (*self.layout[: self.axis], B, *self.layout[self.axis + 1 :])

    @property
    def adds_up(self) -> bool:
        """Whether what is given is the total over the micro-batches."""
        return self.axis is not None and not self.layout[self.axis].is_split


@dataclass(frozen=True)
class Chunk:
    """Ops that one stage runs together.

    Attributes:
      arguments: which of the step's inputs are the first inputs of `graph`.
      takes: (chunk, which of its gives), in the order of its other inputs.
      gives: what others read, or the step returns: the outputs of `graph`.
      waits: chunks that must have run before, though nothing of theirs is read.
      graph, plan: the chunk as a step of its own, whose inputs arrive in the layouts of `plan.inputs` on `plan.mesh`.
    """

    key: Key
    arguments: tuple[int, ...]
    takes: tuple[tuple[Key, int], ...]
    gives: tuple[Give, ...]
    waits: tuple[Key, ...]
    graph: LogicalGraph
    plan: Plan


@dataclass(frozen=True)
class Chunks:
    """A step in chunks.

    Attributes:
      all: in an order in which a micro-batch may go through them.
      outputs: for each output of the step the chunk and the number of what it gives; None for a constant.
    """

    all: tuple[Chunk, ...]
    outputs: tuple[tuple[Key, int] | None, ...]
