"""What is wrong with the actions of a schedule."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from whaleish.schedule.action import BACKWARD, COMPUTE, FORWARD, RECEIVES, SENDS, Action

if TYPE_CHECKING:
    from whaleish.schedule.schedule import Schedule


def find_problems(schedule: Schedule) -> list[str]:
    """All that is wrong with the set of actions; if nothing is, who would wait for whom for ever."""
    return list(_problems(schedule)) or _deadlock(schedule)


def _problems(schedule: Schedule) -> Iterator[str]:
    """What is wrong with the set of actions and their order within a device."""
    empty = [device for device, actions in enumerate(schedule.devices) if not actions]
    if empty or not schedule.devices:
        yield f"device {empty[0]} has no actions" if empty else "it has no devices"
        return
    everywhere = [action for actions in schedule.devices for action in actions]
    homes: dict[int, set[int]] = {}
    for device, actions in enumerate(schedule.devices):
        for action in actions:
            homes.setdefault(action.stage, set()).add(device)
    missing = sorted(set(range(max(homes) + 1)) - set(homes))
    if missing:
        yield f"stage {missing[0]} is on no device, though there is a stage {max(homes)}"
    for stage, devices in sorted(homes.items()):
        if len(devices) > 1:
            yield f"stage {stage} is on the devices {', '.join(map(str, sorted(devices)))}; a stage has one"
    for action, times in Counter(everywhere).items():
        if times > 1:
            yield f"{action} is there {times} times"
    if missing or any(len(devices) > 1 for devices in homes.values()):
        return
    found, wanted = set(everywhere), set(_wanted(schedule))
    for action in sorted(wanted - found, key=_by_stage):
        yield f"{action} is missing"
    for action in sorted(found - wanted, key=_by_stage):
        yield f"{action} has nothing to {'send' if action.kind[0] == 'S' else 'receive'}"
    for device, actions in enumerate(schedule.devices):
        position = {action: len(actions) - k for k, action in enumerate(reversed(actions), 1)}
        for action in position:
            for needed in schedule.needs(action):
                if position.get(needed, -1) > position[action]:
                    yield f"device {device} has {action} before {needed}"


def _wanted(schedule: Schedule) -> Iterator[Action]:
    """The actions that a schedule for so many stages and micro-batches consists of."""
    for stage in range(schedule.stages):
        for kind in COMPUTE if schedule.splits_backward(stage) else (FORWARD, BACKWARD):
            for micro_batch in range(schedule.micro_batches):
                action = Action(kind, micro_batch, stage)
                yield action
                if schedule.has_transfers and schedule.source(action) is not None:
                    yield Action(RECEIVES[kind], micro_batch, stage)
                if schedule.has_transfers and schedule.target(action) is not None:
                    yield Action(SENDS[kind], micro_batch, stage)


def _by_stage(action: Action) -> tuple[int, str, int]:
    return action.stage, action.kind, action.micro_batch


def _deadlock(schedule: Schedule) -> list[str]:
    """Who waits for whom, where devices that keep to their lists would wait for each other for ever."""
    lanes = schedule.lanes()
    lane_of = {action: lane for lane, actions in lanes.items() for action in actions}
    ended = dict.fromkeys(lanes, 0)
    done: set[Action] = set()
    moved = True
    while moved:
        moved = False
        for lane, actions in lanes.items():
            while ended[lane] < len(actions) and done.issuperset(schedule.needs(actions[ended[lane]])):
                done.add(actions[ended[lane]])
                ended[lane] += 1
                moved = True
    heads = {lane: actions[ended[lane]] for lane, actions in lanes.items() if ended[lane] < len(actions)}
    if not heads:
        return []
    path, steps = [next(iter(heads))], []
    while True:
        head = heads[path[-1]]
        needed = next(needed for needed in schedule.needs(head) if needed not in done)
        step, lane = f"{head} waits for {needed}", lane_of[needed]
        if heads[lane] != needed:
            step += f", which comes after {heads[lane]} on device {schedule.places[needed.stage]}"
        steps.append(step)
        if lane in path:
            return ["devices would wait for each other for ever: " + "; ".join(steps[path.index(lane) :])]
        path.append(lane)
