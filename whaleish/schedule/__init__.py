"""Schedules: the order in which the devices of a pipeline go through stages and micro-batches. Pure data."""

from __future__ import annotations

import re
from collections.abc import Callable

from whaleish.schedule.action import Action
from whaleish.schedule.gpipe import gpipe
from whaleish.schedule.interleaved import interleaved
from whaleish.schedule.one_f_one_b import one_f_one_b
from whaleish.schedule.schedule import Schedule
from whaleish.schedule.timeline import Costs, Timeline, timeline
from whaleish.schedule.zero_bubble import zb_h1

__all__ = [
    "Action",
    "Costs",
    "Schedule",
    "Timeline",
    "check_given",
    "gpipe",
    "interleaved",
    "make_schedule",
    "one_f_one_b",
    "timeline",
    "zb_h1",
]

_BY_NAME: dict[str, Callable[[int, int], Schedule]] = {"gpipe": gpipe, "1f1b": one_f_one_b, "zb-h1": zb_h1}
_INTERLEAVED = re.compile(r"interleaved\((\d+)\)")
_OWN = re.compile(r"\s*[RS]?[FBW]\d")


def check_given(given: str) -> None:
    """Raises ValueError for what `make_schedule` would take for no numbers of stages and micro-batches."""
    if isinstance(given, str) and (given in _BY_NAME or _INTERLEAVED.fullmatch(given)):
        return
    if not isinstance(given, str) or not _OWN.match(given):
        raise ValueError(
            f"{given!r} is not a schedule; give {', '.join(map(repr, _BY_NAME))}, 'interleaved(v)' with v stages on "
            "each device, or a list of actions with a line for each device, such as 'F0 F1 B0 B1\\nF0 B0 F1 B1'"
        )
    Schedule.parse(given)


def make_schedule(given: str, stages: int, micro_batches: int) -> Schedule:
    """The schedule of a name: "gpipe", "1f1b", "interleaved(2)" (two stages on each device) or "zb-h1".

    Args:
      given: the name, or one's own list of actions: a line for each device, as `str(schedule)` prints them.
      stages: of the whole pipeline, over all devices.

    Raises:
      ValueError: there is no such name, or it does not fit these numbers.
    """
    if stages < 1 or micro_batches < 1:
        raise ValueError(
            f"a schedule for {stages} stages and {micro_batches} micro-batches: there is at least one of each"
        )
    if given in _BY_NAME:
        return _BY_NAME[given](stages, micro_batches)
    match = _INTERLEAVED.fullmatch(given)
    if match is not None:
        return interleaved(stages, micro_batches, int(match[1]))
    check_given(given)
    schedule = Schedule.parse(given)
    if (schedule.stages, schedule.micro_batches) != (stages, micro_batches):
        raise ValueError(
            f"the schedule given is for {schedule.stages} stages and {schedule.micro_batches} micro-batches; "
            f"there are {stages} and {micro_batches}"
        )
    return schedule
