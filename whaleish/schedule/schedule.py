"""Schedules: for each device the actions it carries out, in order, as plain data that prints and parses back."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from functools import cached_property

from whaleish.schedule.action import (
    BACKWARD,
    FORWARD,
    RECEIVE_BACKWARD,
    RECEIVE_FORWARD,
    RECEIVES,
    SEND_BACKWARD,
    SEND_FORWARD,
    SENDS,
    SOURCE,
    WEIGHT,
    Action,
)
from whaleish.schedule.checks import find_problems

Lane = tuple[Hashable, ...]


@dataclass(frozen=True, repr=False)
class Schedule:
    """What each device does for one step, in order.

    Stages are a chain: a forward reads what the stage before made, a backward what the stage after made. A schedule
    that is right for the chain is right for stages that also skip some. With two stages on two devices:

        F0 F1 B0 F2 B1 B2        one line for each device;
        F0 B0 F1 B1 F2 B2        F0 is micro-batch 0 on the device's own stage, F0.2 on stage 2

    A device computes in the order of its list. Transfers take place beside that: a receive may end any time before
    what reads it, and a device's sends to one other device go in order.

    Attributes:
      devices: for each device its actions.

    Raises:
      ValueError: lists what is wrong with the actions.
    """

    devices: tuple[tuple[Action, ...], ...]

    def __post_init__(self) -> None:
        problems = find_problems(self)
        if problems:
            more = [f"and {len(problems) - 8} more"] if len(problems) > 8 else []
            raise ValueError("this is not a schedule: " + "; ".join(problems[:8] + more))

    @cached_property
    def places(self) -> tuple[int, ...]:
        """For each stage its device."""
        homes = {action.stage: device for device, actions in enumerate(self.devices) for action in actions}
        return tuple(homes[stage] for stage in sorted(homes))

    @property
    def stages(self) -> int:
        return len(self.places)

    @cached_property
    def micro_batches(self) -> int:
        return 1 + max(action.micro_batch for actions in self.devices for action in actions)

    @cached_property
    def has_transfers(self) -> bool:
        return any(action.is_transfer for actions in self.devices for action in actions)

    def splits_backward(self, stage: int) -> bool:
        """Whether weight gradients of a stage are actions of their own."""
        return any(a.kind == WEIGHT and a.stage == stage for a in self.devices[self.places[stage]])

    def computes(self, device: int) -> tuple[Action, ...]:
        """A device's actions that are no transfers."""
        return tuple(action for action in self.devices[device] if not action.is_transfer)

    def without_transfers(self) -> Schedule:
        """The same schedule without its sends and receives."""
        return Schedule(tuple(self.computes(device) for device in range(len(self.devices))))

    def with_transfers(self) -> Schedule:
        """The same schedule with every send right after what makes its value, every receive right before its reader.

        Neighbouring stages on one device need none.
        """
        lists = []
        for device in range(len(self.devices)):
            actions: list[Action] = []
            for action in self.computes(device):
                kind, micro_batch, stage = action
                if self.source(action) is not None:
                    actions.append(Action(RECEIVES[kind], micro_batch, stage))
                actions.append(action)
                if self.target(action) is not None:
                    actions.append(Action(SENDS[kind], micro_batch, stage))
            lists.append(tuple(actions))
        return Schedule(tuple(lists))

    def source(self, action: Action) -> int | None:
        """The device from which what F or B reads is received; None if it is made on its own device, or nowhere."""
        return self._elsewhere(action.stage, SOURCE[action.kind]) if action.kind in SOURCE else None

    def target(self, action: Action) -> int | None:
        """The device to which what F or B made is sent; None if it stays."""
        return self._elsewhere(action.stage, -SOURCE[action.kind]) if action.kind in SOURCE else None

    def _elsewhere(self, stage: int, step: int) -> int | None:
        """The device of the stage that stands `step` from another one, if that is another device."""
        there = stage + step
        if 0 <= there < self.stages and self.places[there] != self.places[stage]:
            return self.places[there]
        return None

    def needs(self, action: Action) -> list[Action]:
        """The actions that must have ended before an action begins, apart from the order of its device."""
        kind, micro_batch, stage = action
        if kind == WEIGHT:
            return [Action(BACKWARD, micro_batch, stage)]
        if kind in (SEND_FORWARD, SEND_BACKWARD):
            return [Action(kind[1], micro_batch, stage)]
        if kind in (RECEIVE_FORWARD, RECEIVE_BACKWARD):
            return [Action("S" + kind[1], micro_batch, stage + SOURCE[kind[1]])]
        needed = [Action(FORWARD, micro_batch, stage)] if kind == BACKWARD else []
        source = stage + SOURCE[kind]
        if 0 <= source < self.stages:
            received = self.has_transfers and self.source(action) is not None
            needed.append(Action(RECEIVES[kind], micro_batch, stage) if received else Action(kind, micro_batch, source))
        return needed

    def lanes(self) -> dict[Lane, list[Action]]:
        """What takes place in order, one after the other: what a device computes, what it sends to another device.

        A receive is a lane of its own, as it ends when its send does.
        """
        lanes: dict[Lane, list[Action]] = {}
        for device, actions in enumerate(self.devices):
            for action in actions:
                lane: Lane = ("device", device)
                if action.kind in (SEND_FORWARD, SEND_BACKWARD):
                    lane = ("link", device, self.places[action.stage - SOURCE[action.kind[1]]])
                elif action.is_transfer:
                    lane = ("receive", action)
                lanes.setdefault(lane, []).append(action)
        return lanes

    def live(self, stage: int) -> list[int]:
        """How many micro-batches' activations a stage holds after each action that its device computes.

        They are held from a micro-batch's forward to the end of its backward, both halves of it.
        """
        last = WEIGHT if self.splits_backward(stage) else BACKWARD
        change = {(FORWARD, stage): 1, (last, stage): -1}
        held, counts = 0, []
        for action in self.computes(self.places[stage]):
            held += change.get((action.kind, action.stage), 0)
            counts.append(held)
        return counts

    def registers(self, stage: int) -> int:
        """The most micro-batches that are live on a stage at once: so many registers its forward needs."""
        return max(self.live(stage))

    def __str__(self) -> str:
        """One line for each device."""
        lines = []
        for device, actions in enumerate(self.devices):
            alone = device if all(action.stage == device for action in actions) else None
            lines.append(" ".join(action.text(alone) for action in actions))
        return "\n".join(lines) + "\n"

    def __repr__(self) -> str:
        return f"Schedule.parse({str(self).strip()!r})"

    @classmethod
    def parse(cls, text: str) -> Schedule:
        """Reads what `str(schedule)` wrote, or a list of one's own.

        Raises:
          ValueError: names the device's line that it cannot read, or says what is wrong with the actions.
        """
        lists = []
        for device, line in enumerate(text.strip().splitlines()):
            try:
                lists.append(tuple(Action.parse(word, device) for word in line.split()))
            except ValueError as error:
                raise ValueError(f"line {device + 1} of the schedule, of device {device}: {error}") from error
        return cls(tuple(lists))
