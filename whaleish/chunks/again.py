"""Recomputation: what the backward of a stage makes again, so that nobody has to keep it."""

from __future__ import annotations

from collections.abc import Iterable

from whaleish.chunks.chunk import FORWARD_TURN, Key
from whaleish.chunks.keys import Keys
from whaleish.graph import LogicalGraph
from whaleish.planner.units import Units
from whaleish.rules.whole import DRAWS
from whaleish.runtime import EACH


def made_again(graph: LogicalGraph, units: Units, keys: Keys, stage: int, readers: Iterable[int]) -> set[int]:
    """The ops of a stage's forward that some ops of its backward need, directly or through each other.

    Without those that have an effect, or that may give something else the next time: what they make is kept.
    """
    forward, effects = Key(EACH, stage, FORWARD_TURN), set(graph.effects)
    todo = [units.of[index] for index in readers]
    found: set[int] = set()
    while todo:
        for tensor in units.reads[todo.pop()]:
            unit = units.maker(tensor)
            if unit in found or keys.of_unit(unit) != forward:
                continue
            if any(index in effects or graph.ops[index].type in DRAWS for index in keys.busy(unit)):
                continue
            found.add(unit)
            todo.append(unit)
    return {index for unit in found for index in keys.busy(unit)}
