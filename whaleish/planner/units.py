"""Units: ops that cannot be parted from each other, a loop or condition with its bodies; any other op is one."""

from __future__ import annotations

import heapq

from whaleish.graph import BACKWARD, FORWARD, UPDATE, LogicalGraph
from whaleish.rules.control import CONDITION, LOOP


class Units:
    """The units of a graph, each called by the number of its first op.

    Attributes:
      of: for each op its unit. members: of each unit the ops.
      reads: of each unit the tensors of other units that it reads, without variables, constants and the step's inputs.
      uses: of each unit the handles of variables; users: of each handle the units.
      readers: of each tensor the units that read it.
      given: of each unit that reads inputs of the step which.
      order: all units, each after those that it reads; else as the user's code made them.
    """

    def __init__(self, graph: LogicalGraph) -> None:
        self.graph = graph
        self.of = _join(graph)
        self.members: dict[int, list[int]] = {}
        for index, unit in enumerate(self.of):
            self.members.setdefault(unit, []).append(index)
        handles, given = {variable.handle for variable in graph.variables}, set(graph.inputs)
        self.reads: dict[int, list[int]] = {}
        self.uses: dict[int, list[int]] = {}
        self.users: dict[int, list[int]] = {}
        self.readers: dict[int, list[int]] = {}
        self.given: dict[int, list[int]] = {}
        for unit, members in self.members.items():
            tensors = dict.fromkeys(tensor for index in members for tensor in graph.ops[index].inputs)
            if own := [tensor for tensor in tensors if tensor in given]:
                self.given[unit] = own
            self.uses[unit] = [tensor for tensor in tensors if tensor in handles]
            made_elsewhere = (tensor for tensor in tensors if self.maker(tensor) != unit)
            skipped = handles | given | set(graph.constants)
            self.reads[unit] = [tensor for tensor in made_elsewhere if tensor not in skipped]
            for tensor in self.reads[unit]:
                self.readers.setdefault(tensor, []).append(unit)
            for handle in self.uses[unit]:
                self.users.setdefault(handle, []).append(unit)
        self.order = self._sorted()

    def maker(self, tensor: int) -> int:
        """The unit that makes a tensor."""
        return self.of[self.graph.tensors[tensor].producer]

    def makes(self, unit: int) -> list[int]:
        """The tensors that a unit makes."""
        return [tensor for index in self.members[unit] for tensor in self.graph.ops[index].outputs]

    def phase(self, unit: int) -> str:
        """Of a loop or condition its own: in its body may be what makes lists for the gradient."""
        ops = [self.graph.ops[index] for index in self.members[unit]]
        anchors = [op for op in ops if op.type in (LOOP, CONDITION) and not op.region]
        phases = {op.phase for op in anchors or ops}
        return next(phase for phase in (UPDATE, BACKWARD, FORWARD) if phase in phases)

    def controls(self, unit: int) -> set[int]:
        """The units that a unit waits for, besides those that it reads."""
        return {self.of[c] for index in self.members[unit] for c in self.graph.ops[index].controls} - {unit}

    def _sorted(self) -> list[int]:
        before = {unit: {self.maker(t) for t in reads} | self.controls(unit) for unit, reads in self.reads.items()}
        after: dict[int, list[int]] = {}
        for unit, earlier in before.items():
            for other in earlier:
                after.setdefault(other, []).append(unit)
        waits = {unit: len(earlier) for unit, earlier in before.items()}
        ready = [unit for unit, count in waits.items() if not count]
        heapq.heapify(ready)
        order = []
        while ready:
            unit = heapq.heappop(ready)
            order.append(unit)
            for reader in after.get(unit, ()):
                waits[reader] -= 1
                if not waits[reader]:
                    heapq.heappush(ready, reader)
        return order


def _join(graph: LogicalGraph) -> list[int]:
    """For each op its unit."""
    first: dict[int, int] = {}  # the first of the regions of an outermost loop or condition -> its first op
    together: dict[int, int] = {}
    for op in graph.ops:
        for region in op.attrs.get("regions", ()):
            together.setdefault(region, min(op.attrs["regions"]))
    units = []
    for index, op in enumerate(graph.ops):
        region = op.region
        while region and graph.regions[region].parent:
            region = graph.regions[region].parent
        if not region and "regions" in op.attrs:
            region = op.attrs["regions"][0]
        units.append(first.setdefault(together.get(region, region), index) if region else index)
    return units


def bodies(graph: LogicalGraph, anchor: int) -> list[int]:
    """The ops in the bodies of a loop or condition, and those that join them to what is round it."""
    regions = set(graph.ops[anchor].attrs["regions"])
    for number, region in enumerate(graph.regions):  # a body comes after the region that it is in
        if region.parent in regions:
            regions.add(number)
    return [
        index
        for index, op in enumerate(graph.ops)
        if op.region in regions or not regions.isdisjoint(op.attrs.get("regions", ()))
    ]
