"""Drafts: a graph written anew, with further ops among those that it had."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from whaleish.graph import LogicalGraph, Op, Tensor
from whaleish.planner.plan import Choice, Plan


class Draft:
    """A graph under construction, of another one that stays as it is.

    Until it is finished the other's tensors and ops keep their numbers, also in controls, and new ones have further
    numbers.

    Attributes:
      ops: those put so far, in the new order, by number.
      specs: of all tensors.
    """

    def __init__(self, graph: LogicalGraph) -> None:
        self.graph = graph
        self.specs: list[Tensor] = list(graph.tensors)
        self.ops: dict[int, Op] = {}
        self._origin: dict[int, int] = {}
        self._choices: dict[int, Choice] = {}
        self._count = len(graph.ops)

    def tensors_like(self, tensors: Iterable[int]) -> tuple[int, ...]:
        """New tensors of the shapes and types of others."""
        first = len(self.specs)
        self.specs += [self.specs[tensor] for tensor in tensors]
        return tuple(range(first, len(self.specs)))

    def keep(self, index: int, op: Op) -> None:
        """Puts what becomes of an op that was there."""
        self.ops[index], self._origin[index] = op, index

    def put(self, op: Op, origin: int, choice: Choice | None = None) -> int:
        """Puts a new op.

        Args:
          origin: the op that was there of which it is a copy, or whose line of the user's code it is for.
          choice: how it is carried out; None: as its origin is.

        Returns:
          Its number.
        """
        number, self._count = self._count, self._count + 1
        self.ops[number], self._origin[number] = op, origin
        if choice is not None:
            self._choices[number] = choice
        return number

    def finish(self) -> tuple[LogicalGraph, list[int]]:
        """The graph, and for each of its ops the number of the origin."""
        old = self.graph
        place = {number: position for position, number in enumerate(self.ops)}
        tensors: list[Tensor] = []
        name: dict[int, int] = {}
        for position, op in enumerate(self.ops.values()):
            for slot, tensor in enumerate(op.outputs):
                name[tensor] = len(tensors)
                tensors.append(replace(self.specs[tensor], producer=position, slot=slot))
        ops = [
            replace(
                op,
                inputs=renamed(op.inputs, name),
                outputs=renamed(op.outputs, name),
                controls=tuple(place[control] for control in op.controls),
            )
            for op in self.ops.values()
        ]
        origin = [self._origin[number] for number in self.ops]
        made = LogicalGraph(
            ops=ops,
            tensors=tensors,
            inputs=renamed(old.inputs, name),
            outputs=renamed(old.outputs, name),
            variables=tuple(replace(variable, handle=name[variable.handle]) for variable in old.variables),
            constants={name[tensor]: value for tensor, value in old.constants.items() if tensor in name},
            scopes=list(old.scopes),
            regions=list(old.regions),
            effects=tuple(place[index] for index in old.effects),
            source=lambda index: old.source(origin[index]) if index < len(origin) else "",
        )
        return made, origin

    def plan(self, plan: Plan) -> Plan:
        """The plan for the finished graph, of that for the other one."""
        made = follow(plan, [self._origin[number] for number in self.ops])
        choices = (self._choices.get(number, choice) for number, choice in zip(self.ops, made.choices, strict=True))
        return replace(made, choices=tuple(choices))


def follow(plan: Plan, origin: Sequence[int]) -> Plan:
    """The plan for a graph each of whose ops is carried out, and placed, as one of the plan's graph: its origin."""
    stages = plan.pipelining
    if stages is not None:
        stages = replace(stages, stage_of=tuple(stages.stage_of[index] for index in origin))
    return replace(plan, choices=tuple(plan.choices[index] for index in origin), pipelining=stages)


def renamed(tensors: Iterable[int], names: Mapping[int, int]) -> tuple[int, ...]:
    """Tensors, those that have another name by that."""
    return tuple(names.get(tensor, tensor) for tensor in tensors)
