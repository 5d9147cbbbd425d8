"""Placement: the stage that each op and each variable of a step belongs to.

What the user put under a `stage` scope is on that stage, and a variable lives where it is first read. Everything else
follows the data:

- What is made of variables and constants alone goes where it is first needed.
- A backward op may be on the stage of the gradients that it reads or on an earlier one. It stays until it reads what
  only an earlier stage has; then, from the end to the beginning, each op goes to the earliest stage at which the fewest
  bytes cross between stages. Weights and the batch never do, however small they are. So a weight's gradient is made
  where the weight is, and what crosses a border of stages is the gradient of what crossed it forwards.
- An update is on the stage of its variable; a slot lives where the gradient is that it is combined with.

Names say nothing here: gradients of `tf.custom_gradient` and of called functions have none that tell of scopes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from whaleish.alike import join_alike
from whaleish.graph import UPDATE, LogicalGraph
from whaleish.planner.chain import check_chain
from whaleish.planner.kinds import BACKWARD_UNIT, FORWARD_UNIT, TIMELESS, UPDATE_UNIT, scoped_stages, unit_kinds
from whaleish.planner.presence import Presence
from whaleish.planner.roles import PlanError
from whaleish.planner.stages import Stages
from whaleish.planner.units import Units
from whaleish.rules.variables import READS


def place_ops(graph: LogicalGraph, stages: Stages) -> tuple[int, ...]:
    """For each op its stage. A variable's is that of the op which stands for its handle.

    Raises:
      PlanError: the stages of a pipeline do not form a chain, or two write one variable; names op, stages and line.
    """
    placement = _Placement(graph, stages)
    placement.run()
    if stages.micro_batches:
        check_chain(placement.units, placement.kind, placement.scoped, placement.at)
    return tuple(placement.at[placement.units.of[index]] or 0 for index in range(len(graph.ops)))


class _Placement:
    """Ops joined to units, and the stage of each.

    Attributes:
      kind: of each unit. scoped: the stages of those under `stage` scopes.
      at: of each unit, once it is known. home: of each variable's handle.
    """

    def __init__(self, graph: LogicalGraph, stages: Stages) -> None:
        self.graph, self.stages, self.units = graph, stages, Units(graph)
        self.kind, self.scoped = unit_kinds(self.units), scoped_stages(self.units, stages)
        self.at: dict[int, int | None] = dict.fromkeys(self.units.members)
        self.home: dict[int, int] = {}
        self.batch = {  # the inputs of the step that stages read
            tensor
            for unit, given in self.units.given.items()
            for tensor in given
            if self.kind[unit] == FORWARD_UNIT and unit in self.scoped and graph.tensors[tensor].shape != ()
        }
        timeless = (self.units.makes(unit) for unit, kind in self.kind.items() if kind == TIMELESS)
        self.present = Presence(graph, self.batch.union(*timeless))

    def run(self) -> None:
        """Finds the stage of every unit."""
        self._fix()
        self._choose(unit for unit in self.units.order if self.kind[unit] != UPDATE_UNIT)
        self._join_updates()
        self._sweep()
        self._choose(self.units.order)
        for variable in self.graph.variables:
            if variable.handle in self.home:
                self.at[self.units.maker(variable.handle)] = self.home[variable.handle]

    def _fix(self) -> None:
        """What the scopes say: of ops, and of variables by the ops that read them first."""
        writers: dict[int, tuple[int, int]] = {}
        for unit in self.units.order:
            stage = self.scoped.get(unit)
            if stage is None:
                continue
            for handle in self.units.uses[unit]:
                self.home.setdefault(handle, stage)
                if any(self._writes(index, handle) for index in self.units.members[unit]):
                    other, first = writers.setdefault(handle, (stage, unit))
                    if other != stage:
                        name = self.graph.variable_of()[handle].name
                        raise PlanError(
                            f"the variable {name!r} is written in stages {other} and {stage}, by "
                            f"{self.graph.place(first)} and {self.graph.place(unit)}. A variable lives on one stage: "
                            "write it there, or give each stage a variable of its own"
                        )
        for unit in self.units.order:
            stage = self.scoped.get(unit)
            if any(handle in self.home for handle in self.units.uses[unit]):
                self._put(unit, self._home_of(unit))
            elif stage is not None:
                self._put(unit, stage)

    def _choose(self, units: Iterable[int]) -> None:
        """Puts units where they go by what they read, and with them what is needed there and depends on no stage."""
        for unit in units:
            if self.at[unit] is None:
                stage = self._first_choice(unit)
                if stage is not None:
                    self._put(unit, stage)
            self._pull(unit)

    def _join_updates(self) -> None:
        """What updates combine elementwise with a variable is on its stage: its slots, and what they are made of."""
        group_of = join_alike(self.graph, (UPDATE,))
        homes: dict[int, set[int]] = {}
        for handle, stage in self.home.items():
            if handle in group_of:
                homes.setdefault(group_of[handle], set()).add(stage)
        stage_of = {group: next(iter(stages)) for group, stages in homes.items() if len(stages) == 1}
        for unit in self.units.order:
            if self.kind[unit] != UPDATE_UNIT or self.at[unit] is not None:
                continue
            ops = [self.graph.ops[index] for index in self.units.members[unit]]
            groups = [group_of[t] for op in ops for t in (*op.outputs, *op.inputs) if t in group_of]
            stages = {stage_of[group] for group in groups if group in stage_of}
            if any(handle in self.home for handle in self.units.uses[unit]):
                stages = {self._home_of(unit)}
            if len(stages) == 1:
                self._put(unit, next(iter(stages)))
                self._pull(unit)

    def _writes(self, index: int, handle: int) -> bool:
        op = self.graph.ops[index]
        return handle in op.inputs and op.type not in READS

    def _home_of(self, unit: int) -> int:
        """The stage of a unit that uses variables."""
        homes = {self.home[handle]: handle for handle in self.units.uses[unit] if handle in self.home}
        if len(homes) > 1:
            names = self.graph.variable_of()
            told = " and ".join(f"{names[handle].name!r} of stage {stage}" for stage, handle in sorted(homes.items()))
            raise PlanError(
                f"{self.graph.place(unit)} uses the variables {told}, and is on one stage. Use variables of one stage "
                "in it, or put what reads them into one wh.stage()"
            )
        return next(iter(homes))

    def _put(self, unit: int, stage: int) -> None:
        """Puts a unit on a stage, and its variables if they are nowhere yet."""
        if self.at[unit] is not None:
            return
        self.at[unit] = stage
        self.present.note((*self._takes(unit), *self.units.makes(unit)), stage)
        for handle in self.units.uses[unit]:
            if handle not in self.home:
                self.home[handle] = stage
                for user in self.units.users[handle]:
                    self._put(user, stage)

    def _pull(self, unit: int) -> None:
        """Puts beside a unit what it reads that is nowhere yet, though all before it has had its turn."""
        todo = [unit] if self.at[unit] is not None else []
        while todo:
            reader = todo.pop()
            for tensor in self.units.reads[reader]:
                maker = self.units.maker(tensor)
                if self.at[maker] is None and self.kind[maker] != UPDATE_UNIT:
                    self._put(maker, self._stage(reader))
                    todo.append(maker)

    def _first_choice(self, unit: int) -> int | None:
        """Where a unit goes by what it reads; None if that is nowhere yet."""
        if any(handle in self.home for handle in self.units.uses[unit]):
            return self._home_of(unit)
        known = [t for t in self.units.reads[unit] if self.at[self.units.maker(t)] is not None]
        if not known:
            return None
        makers = [self.units.maker(tensor) for tensor in known]
        kind = self.kind[unit]
        places = {self._stage(maker) for maker in makers}
        alike = {self._stage(maker) for maker in makers if self.kind[maker] == kind}
        if kind == FORWARD_UNIT and alike:
            return max(alike)
        if kind == BACKWARD_UNIT:
            latest = min(alike, default=self.stages.count)
            known += [tensor for tensor in self.units.given.get(unit, ()) if tensor in self.batch]
            places |= {s for s in range(self.stages.count) if any(self.present.has(s, tensor) for tensor in known)}
            places = {stage for stage in places if stage <= latest} or {latest}
            # Where as many bytes are missing, a gradient goes on to what was kept of the forward rather than that to
            # it: others that read what was kept follow, and then all but the gradient stays where it is.
            return min(places, key=lambda stage: (self.present.missing(known, stage), stage == latest, -stage))
        return min(places, key=lambda stage: (self.present.missing(known, stage), stage))

    def _sweep(self) -> None:
        """From the end: backward ops, and forward ones outside stages, to where the fewest bytes cross."""
        for unit in reversed(self.units.order):
            kind, own = self.kind[unit], self.at[unit]
            if own is None or self.units.uses[unit] or unit in self.scoped:
                continue
            if kind not in (FORWARD_UNIT, BACKWARD_UNIT):
                continue
            made = self.units.makes(unit)
            readers = [reader for tensor in made for reader in self.units.readers.get(tensor, ()) if reader != unit]
            before = [
                self._stage(self.units.maker(t))
                for t in self.units.reads[unit]
                if self.kind[self.units.maker(t)] == kind
            ]
            after = [self._stage(reader) for reader in readers if self.kind[reader] == kind]
            if kind == FORWARD_UNIT:
                low, high = max(before, default=0), min(after, default=self.stages.count - 1)
            else:
                low, high = max(after, default=0), min(before, default=self.stages.count - 1)
            places = {own, *(self._stage(reader) for reader in readers), *before}
            places = {stage for stage in places if low <= stage <= high}
            if len(places) > 1:
                self._move(unit, min(places, key=lambda stage: (self._crossing(unit, made, stage), stage)))

    def _crossing(self, unit: int, made: Sequence[int], stage: int) -> int:
        """Bytes that cross between stages because a unit is on one of them."""
        sent = 0
        for tensor in made:
            places = {self._stage(reader) for reader in self.units.readers.get(tensor, ()) if reader != unit}
            sent += self.present.nbytes(tensor) * len(places - {stage})
        known = [t for t in self._takes(unit) if t in self.batch or self.at[self.units.maker(t)] is not None]
        return sent + self.present.missing(known, stage, self.at[unit])

    def _move(self, unit: int, stage: int) -> None:
        own = self._stage(unit)
        tensors = (*self._takes(unit), *self.units.makes(unit))
        self.present.note(tensors, own, -1)
        self.present.note(tensors, stage)
        self.at[unit] = stage

    def _takes(self, unit: int) -> list[int]:
        """What a unit reads of other units and of the batch."""
        return [*self.units.reads[unit], *(tensor for tensor in self.units.given.get(unit, ()) if tensor in self.batch)]

    def _stage(self, unit: int) -> int:
        return self.at[unit] or 0
