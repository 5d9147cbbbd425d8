"""Contestants: training steps that do the same work in different ways."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Contestant:
    """A step ready to be run again and again.

    Attributes:
      step: runs one training step, waits for it, and returns its loss.
      promised: bytes that each host sends in a step by the plan; None where there is no plan.
      note: what a reader of the figures must know, if anything.
      state: bytes of weights, gradients and slots that a rank has; 0 where it is not asked.
    """

    step: Callable[[], float]
    promised: float | None = None
    note: str = ""
    state: float = 0.0


Builders = Mapping[str, Callable[[], Contestant]]
"""Name -> makes the contestant. They are called in this order, all in one process, the same in every rank; whaleish
comes last, so that the variables of the others are TensorFlow's own."""


@dataclass(frozen=True)
class Target:
    """A demand on the quotient of two figures, or on one.

    Attributes:
      above, below: the line: (contestant, figure) over and under it. Figures are those of `measure.Figures`. Where
        nothing is below, the figure itself is meant, in seconds or bytes.
      limit: what the quotient may be at most; at least, if `at_least`.
      over: two contestants by whose figures those of above and below are divided before.
    """

    above: tuple[str, str]
    below: tuple[str, str] | None
    limit: float
    at_least: bool = False
    over: tuple[str, str] | None = None

    def text(self) -> str:
        who, figure = self.above
        limit = f"{'at least' if self.at_least else 'at most'} {self.limit / self.unit:g}"
        if self.below is None:
            return f"{who}: {figure}{', MB' if self.unit > 1 else ''}, {limit}"
        other, other_figure = self.below
        if self.over:
            first, second = self.over
            return f"{who}: {figure} over {first}'s, by {other}'s over {second}'s, {limit}"
        second = other_figure if who == other else f"{other}'s"
        return f"{who}: {figure} over {second}, {limit}"

    def parts(self) -> list[Target]:
        """The quotients of which a target with `over` is the first by the second."""
        assert self.over is not None
        assert self.below is not None
        sides = zip((self.above, self.below), self.over, strict=True)
        return [replace(self, above=side, below=(other, side[1]), over=None) for side, other in sides]

    @property
    def unit(self) -> float:
        """What figures are divided by to be read: bytes are shown as megabytes."""
        return 1e6 if self.below is None and self.above[1] == "peak" else 1.0

    def met(self, quotient: float) -> bool:
        return quotient >= self.limit if self.at_least else quotient <= self.limit


@dataclass(frozen=True)
class Benchmark:
    """What is measured.

    Attributes:
      name: on the command line, and of the module in this folder that has the contestants as `BUILDERS`; or a function
        `measure` that does it all.
      title: what is done, in a line.
      targets: what is asked for.
      steps: measured steps of each contestant, at each rate. warm: steps before those.
      hosts: emulated hosts, each with one rank; 0 runs in one process, without Horovod.
      rate: of each host's link.
      curve: further rates, at which all is measured besides; a contestant's figures there are those of "name, rate".
      threads: (intra-op, inter-op) of each process.
      processes: how often everything is repeated in fresh processes.
      memory: whether each contestant also runs alone, to measure its peak memory.
    """

    name: str
    title: str
    targets: Sequence[Target]
    steps: int
    warm: int = 2
    hosts: int = 0
    rate: str = "1gbit"
    curve: Sequence[str] = ()
    threads: tuple[int, int] = (1, 2)
    processes: int = 1
    memory: bool = False
