"""How often loops run, where their tests compare a counter with a number: for reports and costs, not for results."""

from __future__ import annotations

from dataclasses import replace
from math import ceil

from whaleish.graph import LogicalGraph, Op
from whaleish.rules.control import LOOP, LOOP_RESULT, LOOP_VARIABLE, NEXT_VALUE

_ALIASES = ("Identity", "Cast", "Squeeze")


def find_trips(graph: LogicalGraph) -> None:
    """Sets `trips` of the regions of loops; of several limits the lowest counts."""
    counter = _Counter(graph)
    for op in graph.ops:
        if op.type == LOOP:
            trips = counter.trips(op.inputs[0])
            if trips is not None:
                for region in op.attrs["regions"]:
                    graph.regions[region] = replace(graph.regions[region], trips=trips)
                counter.known[op.attrs["regions"]] = trips


class _Counter:
    """Attributes: known: the regions of a loop -> its trips."""

    def __init__(self, graph: LogicalGraph) -> None:
        self.graph = graph
        self.known: dict[tuple[int, ...], int] = {}
        self._nexts = {(op.region, op.attrs["variable"]): op.inputs[1] for op in graph.ops if op.type == NEXT_VALUE}

    def trips(self, test: int) -> int | None:
        """How often a test is true, if it can be known."""
        op = self._producer(test)
        if op.type == "LogicalAnd":
            found = [trips for trips in map(self.trips, op.inputs) if trips is not None]
            return min(found, default=None)
        if op.type != "Less":
            return None
        variable, limit = self._producer(op.inputs[0]), self._value(op.inputs[1])
        progress = self._progress(variable)
        if progress is None or limit is None:
            return None
        first, step = progress
        return max(1, ceil((limit - first) / step))

    def _progress(self, variable: Op) -> tuple[int, int] | None:
        """(first value, step) of a variable that counts."""
        if variable.type != LOOP_VARIABLE:
            return None
        first = self._value(variable.inputs[0])
        added = self._producer(self._nexts[variable.region, variable.attrs["variable"]])
        if first is None or added.type not in ("Add", "AddV2") or self._producer(added.inputs[0]) is not variable:
            return None
        step = self._value(added.inputs[1])
        return (first, step) if step else None

    def _value(self, tensor: int) -> int | None:
        """A known whole number: a constant, or what a counter has become."""
        op = self._producer(tensor)
        value = self.graph.constants.get(op.outputs[0])
        if value is not None:
            return int(value.reshape(())) if value.size == 1 and value.dtype.kind in "iu" else None
        if op.type == LOOP_RESULT and op.attrs["regions"] in self.known:
            progress = self._progress(self._producer(op.inputs[0]))
            return None if progress is None else progress[0] + progress[1] * self.known[op.attrs["regions"]]
        return None

    def _producer(self, tensor: int) -> Op:
        """The op that makes a value, behind those that only pass it on."""
        op = self.graph.ops[self.graph.tensors[tensor].producer]
        while op.type in _ALIASES:
            op = self.graph.ops[self.graph.tensors[op.inputs[0]].producer]
        return op
