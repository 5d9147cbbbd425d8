"""Timelines: when each action of a schedule would begin and end, if actions took given times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from whaleish.schedule.action import BACKWARD, FORWARD, WEIGHT, Action
from whaleish.schedule.schedule import Schedule

Seconds = float | Sequence[float]
"""Of every stage alike, or one number for each stage."""


@dataclass(frozen=True)
class Costs:
    """How long actions take.

    Attributes:
      forward: an F.
      backward: the gradient of a stage's input: a B of a stage that has Ws.
      weight: the gradients of its weights: a W. A B of a stage without Ws does both, and takes the sum.
      transfer: from the stage to its neighbour, an activation or a gradient. A device sends to one other device one
        after the other, while it computes.
    """

    forward: Seconds = 1.0
    backward: Seconds = 1.0
    weight: Seconds = 1.0
    transfer: Seconds = 0.0

    def of(self, action: Action, splits_backward: bool) -> float:
        """The seconds of an action; a receive takes none, as it ends when its send does."""
        kind, _, stage = action
        if kind == FORWARD:
            return _at(self.forward, stage)
        if kind == WEIGHT:
            return _at(self.weight, stage)
        if kind == BACKWARD:
            return _at(self.backward, stage) + (0.0 if splits_backward else _at(self.weight, stage))
        return _at(self.transfer, stage) if kind[0] == "S" else 0.0


def _at(seconds: Seconds, stage: int) -> float:
    return float(seconds) if isinstance(seconds, int | float) else float(seconds[stage])


class Span(NamedTuple):
    """When an action takes place, in seconds from the beginning of the step."""

    action: Action
    begin: float
    end: float


@dataclass(frozen=True)
class Timeline:
    """What each device does when.

    Attributes:
      schedule: with its transfers, if they take time.
      devices: for each device its spans, in the order of its actions.
    """

    schedule: Schedule
    devices: tuple[tuple[Span, ...], ...]

    @cached_property
    def makespan(self) -> float:
        """The seconds from the beginning of the step to the end of its last action."""
        return max(span.end for spans in self.devices for span in spans)

    def busy(self, device: int) -> float:
        """The seconds for which a device computes."""
        return sum(span.end - span.begin for span in self.devices[device] if not span.action.is_transfer)

    @property
    def bubble(self) -> float:
        """The share of the devices' time in which they do not compute: 0 to 1."""
        busy = sum(self.busy(device) for device in range(len(self.devices)))
        return 1.0 - busy / (len(self.devices) * self.makespan) if self.makespan else 0.0

    def live(self, stage: int) -> list[tuple[float, int]]:
        """(time, micro-batches whose activations the stage holds from then on), wherever that changes.

        They are held from the beginning of a forward to the end of the backward.
        """
        last = WEIGHT if self.schedule.splits_backward(stage) else BACKWARD
        changes: dict[float, int] = {}
        for action, begin, end in self.devices[self.schedule.places[stage]]:
            if action.stage == stage and action.kind == FORWARD:
                changes[begin] = changes.get(begin, 0) + 1
            elif action.stage == stage and action.kind == last:
                changes[end] = changes.get(end, 0) - 1
        held, counts = 0, []
        for time in sorted(changes):
            held += changes[time]
            if changes[time]:
                counts.append((time, held))
        return counts


def timeline(schedule: Schedule, costs: Costs) -> Timeline:
    """Every action begins as soon as what it needs has ended and its device, or link, is free."""
    if costs.transfer != 0.0 and not schedule.has_transfers:
        schedule = schedule.with_transfers()
    lanes = schedule.lanes()
    split = [schedule.splits_backward(stage) for stage in range(schedule.stages)]
    spans: dict[Action, Span] = {}
    waiting = {lane: (0, 0.0) for lane in lanes}  # how many actions have ended, and when the last did
    while waiting:
        for lane in list(waiting):
            done, free = waiting.pop(lane)
            for action in lanes[lane][done:]:
                needs = [spans.get(needed) for needed in schedule.needs(action)]
                if None in needs:
                    waiting[lane] = (done, free)
                    break
                begin = max([free, *(span.end for span in needs if span)])
                free = begin + costs.of(action, split[action.stage])
                spans[action] = Span(action, begin, free)
                done += 1
    return Timeline(schedule, tuple(tuple(spans[action] for action in actions) for actions in schedule.devices))
