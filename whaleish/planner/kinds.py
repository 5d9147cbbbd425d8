"""What the units of a step with stages are: part of the forward, of the backward, of the updates, or of none."""

from __future__ import annotations

from whaleish.graph import BACKWARD, UPDATE
from whaleish.planner.stages import Stages
from whaleish.planner.units import Units

TIMELESS, FORWARD_UNIT, BACKWARD_UNIT, UPDATE_UNIT = range(4)
"""Timeless is what is made of variables and constants alone."""


def unit_kinds(units: Units) -> dict[int, int]:
    """The kind of each unit."""
    kinds: dict[int, int] = {}
    for unit in units.order:
        phase, reads = units.phase(unit), units.reads[unit]
        before = {kinds[other] for other in (*map(units.maker, reads), *units.controls(unit))}
        if phase == UPDATE:
            kinds[unit] = UPDATE_UNIT
        elif (phase == BACKWARD and reads) or BACKWARD_UNIT in before:
            kinds[unit] = BACKWARD_UNIT
        else:
            kinds[unit] = FORWARD_UNIT if unit in units.given or FORWARD_UNIT in before else TIMELESS
    return kinds


def scoped_stages(units: Units, stages: Stages) -> dict[int, int]:
    """The stage of each unit that the user put under a `stage` scope."""
    found: dict[int, int] = {}
    for unit, members in units.members.items():
        of_members = (stages.of_path[units.graph.ops[index].scope] for index in members)
        stage = next((stage for stage in of_members if stage is not None), None)
        if stage is not None:
            found[unit] = stage
    return found
