"""Slots in the host's memory: a few at a time are on the device, when the gradients are there that they wait for.

What reads a variable runs where it lies, as soon as it can: slots would all be copied to the device as a step begins.
So a read waits for what its value is used with. Where all gradients come at once (their norm is needed first, or they
are totals over micro-batches) it waits, besides, until the slots that are AHEAD before it have been assigned to.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from whaleish.alike import join_alike, variables_alike
from whaleish.graph import UPDATE, LogicalGraph
from whaleish.offloading import offloaded_slots
from whaleish.passes.stored import made_of_variables
from whaleish.planner.plan import Plan
from whaleish.rules.variables import READS

AHEAD = 2
"""How many weights' slots are fetched before those of an earlier one are done with."""


@dataclass
class _Group:
    """The slots of a weight, in one region.

    Attributes:
      reads: op -> the ops that it waits for, which make what is used with the value.
      assigns: the ops that assign to the slots.
    """

    reads: dict[int, set[int]] = field(default_factory=dict)
    assigns: list[int] = field(default_factory=list)

    @property
    def arrives(self) -> int:
        """The last op that it waits for; -1 where it waits for none."""
        return max((index for waits in self.reads.values() for index in waits), default=-1)


def offload_slots(graph: LogicalGraph, plan: Plan) -> LogicalGraph:
    """The step with the slots that `wh.offload()` names on the host, and their reads in time.

    Args:
      graph, plan: not expanded. They stay as they are.
    """
    asked = offloaded_slots(graph)
    if not asked:
        return graph
    at_once = plan.pipelining is not None or any(axis.time for axis in plan.mesh.axes)
    ops = list(graph.ops)
    for groups in _find(graph, plan, asked):
        ordered = sorted((group for group in groups if group.reads), key=lambda group: min(group.reads))
        for place, group in enumerate(ordered):
            before = ordered[place - AHEAD] if place >= AHEAD else None
            for read, arrive in group.reads.items():
                waits = {*ops[read].controls, *arrive}
                if before is not None and (at_once or before.arrives <= group.arrives):
                    waits |= {index for index in before.assigns if index < read}
                ops[read] = replace(ops[read], controls=tuple(sorted(waits)))
    variables = tuple(replace(v, on_host=True) if v.handle in asked else v for v in graph.variables)
    return replace(graph, ops=ops, variables=variables)


def _find(graph: LogicalGraph, plan: Plan, asked: Iterable[int]) -> list[list[_Group]]:
    """For each region and stage the groups of slots that are read or assigned there."""
    alike = variables_alike(graph, join_alike(graph, (UPDATE,)))
    name = {variable.handle: number for number, group in enumerate(alike.values()) for variable in group}
    waits = _Waits(graph)
    stage_of = plan.pipelining.stage_of if plan.pipelining else [0] * len(graph.ops)
    found: dict[tuple[int, int], dict[int, _Group]] = {}
    asked = set(asked)
    for index, op in enumerate(graph.ops):
        for handle in asked.intersection(op.inputs):
            group = found.setdefault((op.region, stage_of[index]), {}).setdefault(name[handle], _Group())
            if op.type == "ReadVariableOp":
                group.reads[index] = waits.of(index)
            elif op.type not in READS:
                group.assigns.append(index)
    return [list(groups.values()) for groups in found.values()]


class _Waits:
    """What a read of a variable waits for."""

    def __init__(self, graph: LogicalGraph) -> None:
        self.graph, self.readers, self.stored = graph, graph.consumers(), made_of_variables(graph)

    def of(self, read: int) -> set[int]:
        """The last ops before a read of those that make what its value is used with."""
        graph, met = self.graph, set[int]()
        todo, seen = list(graph.ops[read].outputs), set[int]()
        while todo:
            for reader in self.readers[todo.pop()]:
                if reader not in seen:
                    seen.add(reader)
                    others = {t for t in graph.ops[reader].inputs if t not in graph.constants} - self.stored
                    others = {t for t in others if graph.tensors[t].dtype != "resource"}
                    met |= {graph.tensors[tensor].producer for tensor in others}
                    if not others:
                        todo += graph.ops[reader].outputs
        return self._before(met, read)

    def _before(self, ops: set[int], end: int) -> set[int]:
        """Ops, and in place of those from `end` on what they are made of."""
        graph, found, seen, todo = self.graph, set[int](), set[int](), list(ops)
        while todo:
            index = todo.pop()
            if index in seen:
                continue
            seen.add(index)
            op = graph.ops[index]
            if index >= end:
                todo += [graph.tensors[t].producer for t in op.inputs if t not in self.stored]
            elif op.region == graph.ops[end].region and op.type != "Placeholder" and not graph.is_constant(index):
                found.add(index)
        return found
