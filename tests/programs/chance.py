"""The layouts of a program, drawn at once: what an op takes hangs on what it is, not on the ops before it."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tests.boxing.pinning import Choose
from tests.programs.program import Program, place
from whaleish.graph import LogicalGraph


@dataclass(frozen=True)
class Chance:
    """Hypothesis may so take statements away, or other programs of the step, and the rest keeps its layouts.

    Attributes:
      seed: of all choices. density: how many of a hundred ops may be divided; fewer of them are among more.
    """

    seed: int
    density: int

    def choice(self, what: str, options: Sequence[Any]) -> Any:
        drawn = random.Random(f"{self.seed} {what}")
        return drawn.choice(options) if 100 * drawn.random() < self.density else options[0]


def chooser(graph: LogicalGraph, drawn: Sequence[tuple[Program, Chance]]) -> Choose:
    """The chance of each program chooses for its ops."""
    described = {
        f"{place(number)}:{line}": (re.sub(r"\bt\d+", "t", code), chance)
        for number, (program, chance) in enumerate(drawn)
        for line, code in enumerate(program.lines, 1)
    }
    for variable in graph.variables:  # p2_v0 is of program 2
        number, _, name = variable.name.removeprefix("p").partition("_")
        described[graph.ops[graph.tensors[variable.handle].producer].name] = (name, drawn[int(number)][1])
    seen: Counter[str] = Counter()
    keys: list[tuple[str, Chance]] = []
    for index, op in enumerate(graph.ops):
        key = op.name if op.type == "Placeholder" else graph.source(index)
        code, chance = described.get(key, (op.name, drawn[0][1]))
        what = f"{op.type} {code}"
        seen[what] += 1
        keys.append((f"{what} {seen[what]}", chance))
    # A second draw of an op is for the next axis.
    draws: Counter[int] = Counter()

    def choose(index: int, options: Sequence[Any]) -> Any:
        draws[index] += 1
        what, chance = keys[index]
        return chance.choice(f"{what} {draws[index]}", options)

    return choose
