"""Keys: which chunk each op of a step with stages belongs to."""

from __future__ import annotations

import itertools

from whaleish.chunks.chunk import BACKWARD_TURN, FORWARD_TURN, WEIGHT_TURN, Key
from whaleish.graph import BACKWARD, LogicalGraph
from whaleish.planner.plan import Plan
from whaleish.planner.roles import PlanError
from whaleish.planner.units import Units
from whaleish.runtime import AFTER, BEFORE, EACH
from whaleish.schedule import Schedule


class Keys:
    """The chunks of units and ops.

    Attributes:
      of: the key of each op that does anything. made: the layout in which each tensor is made.
    """

    def __init__(self, graph: LogicalGraph, plan: Plan, units: Units, time: int | None) -> None:
        assert plan.pipelining is not None
        self._graph, self._plan, self._units, self._time = graph, plan, units, time
        self._idle = {
            index for index, op in enumerate(graph.ops) if op.type == "Placeholder" or graph.is_constant(index)
        }
        self._free = graph.order_free()
        self._first = self._read_by_each() & self._free
        self.made = {
            tensor: layout
            for op, choice in zip(graph.ops, plan.choices, strict=True)
            for tensor, layout in zip(op.outputs, choice.outputs, strict=True)
        }
        self.of: dict[int, Key] = {}
        for unit in units.order:
            ops = self.busy(unit)
            if ops:
                self.of.update(dict.fromkeys(ops, self._find(unit, ops, plan.pipelining.stage_of[ops[0]])))
        if plan.pipelining.order is not None:
            self._split_backward(plan.pipelining.order)

    def busy(self, unit: int) -> list[int]:
        """The ops of a unit that do anything: constants and what stands for arguments do not."""
        return [index for index in self._units.members[unit] if index not in self._idle]

    def of_unit(self, unit: int) -> Key | None:
        """The key of a unit's ops; None if none does anything."""
        ops = self.busy(unit)
        return self.of[ops[0]] if ops else None

    def _find(self, unit: int, ops: list[int], stage: int) -> Key:
        """The chunk of a unit, from those of what it depends on."""
        graph = self._graph
        tensors = (tensor for index in ops for tensor in graph.ops[index].inputs)
        producers = {graph.tensors[tensor].producer for tensor in tensors}
        waits = {control for index in ops for control in self.waits_for(index)}
        before = {self.of[index] for index in (producers | waits) - set(ops) if index in self.of}
        each = next((index for index in ops if self._is_each(index)), None)
        if each is not None:
            self._check_each(each, ops, producers | waits)
            backward = any(key.phase == EACH and key.turn == BACKWARD_TURN for key in before)
            reads = bool(self._units.reads[unit]) or any(graph.ops[index].again for index in ops)
            backward |= self._units.phase(unit) == BACKWARD and reads
            return Key(EACH, stage, BACKWARD_TURN if backward else FORWARD_TURN)
        phase = AFTER if any(key.phase in (EACH, AFTER) for key in before) else BEFORE
        turns = [key.turn + (key.stage != stage) for key in before if key.phase == phase]
        return Key(phase, stage, max(turns, default=0))

    def _check_each(self, each: int, ops: list[int], before: set[int]) -> None:
        """Refuses what runs for each micro-batch, a loop as a whole, and reads what all of them make."""
        graph, made, time = self._graph, self.made, self._time or 0
        gathered = (
            (index, graph.tensors[tensor].producer)
            for index in ops
            for tensor, need in zip(graph.ops[index].inputs, self._plan.choices[index].inputs, strict=True)
            if tensor in made and need[time].is_broadcast and made[tensor][time].kind in ("S", "P")
        )
        late = ((each, index) for index in before if index in self.of and self.of[index].phase == AFTER)
        found = next(itertools.chain(gathered, late), None)
        if found is not None:
            reader, needed = map(graph.place, found)
            raise PlanError(
                f"{reader} runs for each micro-batch and needs {needed} of all of them, which is there only after the "
                "last. Take one of the two out of the pipeline, or the micro-batches away"
            )

    def waits_for(self, index: int) -> tuple[int, ...]:
        """The ops that an op comes after without reading them.

        What each micro-batch reads and what only computes in one waits for nothing that comes later than itself.
        """
        controls = self._graph.ops[index].controls
        if index in self._first:
            earlier = {BEFORE}
        elif index in self._free and self._is_each(index):
            earlier = {BEFORE, EACH}
        else:
            return controls
        return tuple(control for control in controls if control in self.of and self.of[control].phase in earlier)

    def _read_by_each(self) -> set[int]:
        """The ops that run once and that something that runs for each micro-batch needs."""
        graph, found = self._graph, set[int]()
        todo = [index for index in range(len(graph.ops)) if self._is_each(index)]
        while todo:
            for tensor in graph.ops[todo.pop()].inputs:
                producer = graph.tensors[tensor].producer
                if producer not in found and not self._is_each(producer):
                    found.add(producer)
                    todo.append(producer)
        return found

    def _is_each(self, index: int) -> bool:
        """Whether an op runs for each micro-batch."""
        choice, time = self._plan.choices[index], self._time
        return time is not None and any(not layout[time].is_broadcast for layout in (*choice.inputs, *choice.outputs))

    def _split_backward(self, schedule: Schedule) -> None:
        """Where the schedule has weight gradients for themselves, parts them from what earlier stages wait for."""
        split = {stage for stage in range(schedule.stages) if schedule.splits_backward(stage)}
        waited: set[int] = set()
        for unit in reversed(self._units.order) if split else ():
            key = self.of_unit(unit)
            if key is None or key.phase != EACH:
                continue
            for other in (*map(self._units.maker, self._units.reads[unit]), *self._units.controls(unit)):
                # What another stage reads, or what is made for that.
                if self.of_unit(other) != key or unit in waited:
                    waited.add(other)
        for unit in self._units.order:
            key = self.of_unit(unit)
            if key is None or unit in waited or key.stage not in split:
                continue
            if (key.phase, key.turn) == (EACH, BACKWARD_TURN):
                self.of.update(dict.fromkeys(self.busy(unit), key._replace(turn=WEIGHT_TURN)))
