"""What a pipeline refuses: micro-batches that would not go through its stages once, and once back."""

from __future__ import annotations

from collections.abc import Mapping

from whaleish.planner.kinds import BACKWARD_UNIT, FORWARD_UNIT
from whaleish.planner.roles import PlanError
from whaleish.planner.units import Units


def check_chain(units: Units, kind: Mapping[int, int], scoped: Mapping[int, int], at: Mapping[int, int | None]) -> None:
    """Checks that what runs for each micro-batch goes through the stages one after another.

    Args:
      kind, at: of each unit. scoped: the stages of those under `stage` scopes.

    Raises:
      PlanError: names both ends, the stages and the lines.
    """
    graph = units.graph
    for unit in units.order:
        stage = at[unit]
        if kind[unit] not in (FORWARD_UNIT, BACKWARD_UNIT) or stage is None:
            continue
        for maker in map(units.maker, units.reads[unit]):
            before = at[maker]
            if before is None or kind[maker] != kind[unit]:
                continue
            if kind[unit] == FORWARD_UNIT and before > stage:
                if scoped.get(unit, stage) != stage and any(
                    "regions" in graph.ops[i].attrs for i in units.members[unit]
                ):
                    _refuse_shared(units, unit, scoped[unit], stage, maker, before)
                raise PlanError(
                    f"stage {before} feeds stage {stage}: {graph.place(maker)} is on stage {before}, and "
                    f"{graph.place(unit)} on stage {stage} reads it. A micro-batch goes through the stages of "
                    "a pipeline in the order in which the code enters them: enter them in the order of the data"
                )
            if kind[unit] == BACKWARD_UNIT and before < stage:
                raise PlanError(
                    f"the gradients go back and forth between stages: {graph.place(unit)} on stage {stage} "
                    f"needs {graph.place(maker)} of stage {before}. A pipeline goes forward once and back "
                    "once; put both into one stage, or take wh.pipeline() away"
                )
            if kind[unit] == FORWARD_UNIT and before < stage and unit in scoped and maker not in scoped:
                _refuse_between(units, kind, scoped, maker, stage)


def _refuse_shared(units: Units, unit: int, scoped: int, stage: int, maker: int, before: int) -> None:
    """A loop or condition is where the variables are that it reads inside, whatever stage it is written in."""
    graph, names = units.graph, units.graph.variable_of()
    used = " and ".join(repr(names[handle].name) for handle in units.uses[unit])
    raise PlanError(
        f"{graph.place(unit)} is in stage {scoped} and uses {used}, which another op has put on stage {stage}: there "
        f"it would need {graph.place(maker)} of stage {before}. A loop or condition runs where the variables are that "
        "it reads inside. Read them before it, or give each stage layers of its own"
    )


def _refuse_between(units: Units, kind: Mapping[int, int], scoped: Mapping[int, int], unit: int, stage: int) -> None:
    """An op outside any stage is part of what lies before them all, or after them all."""
    origin, seen = [unit], {unit}
    while origin:
        for maker in map(units.maker, units.reads[origin.pop()]):
            if maker in scoped and kind[maker] == FORWARD_UNIT:
                raise PlanError(
                    f"{units.graph.place(unit)} lies between stages {scoped[maker]} and {stage}, outside any "
                    "wh.stage(): put it into one of them"
                )
            if maker not in seen:
                seen.add(maker)
                origin.append(maker)
