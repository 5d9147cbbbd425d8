"""Interleaved 1F1B: each device has several stages, so that a micro-batch comes round several times."""

from __future__ import annotations

from itertools import accumulate

from whaleish.schedule.action import BACKWARD, FORWARD, Action
from whaleish.schedule.one_f_one_b import one_f_one_b
from whaleish.schedule.schedule import Schedule


def interleaved(stages: int, micro_batches: int, per_device: int) -> Schedule:
    """Stage s lies on device s mod D, where D = stages / per_device.

    Two devices with two stages each:

        F0.0 F1.0 F0.2 F1.2 .    B0.2 .    B1.2 B0.0 B1.0
        .    F0.1 F1.1 F0.3 B0.3 F1.3 B1.3 B0.1 B1.1 .

    Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", 2021,
    arXiv:2104.04473: the bubble is 1/v of that of 1F1B, where v is `per_device`: (D - 1) / (v M + D - 1) of the whole
    time. Theirs needs M to be a multiple of D. Micro-batches go round in groups, and any group of D or more keeps all
    devices busy until its first comes round again; so here M is divided into M // D groups as equal as can be, and
    the bubble is as small for every M from D on. With fewer than D it is D v - M of D v, as for 1F1B with all stages
    apart: nothing can fill it. A multiple of D holds the fewest activations.

    Raises:
      ValueError: stages cannot be dealt out evenly.
    """
    if per_device < 1 or stages % per_device:
        raise ValueError(
            f"interleaved({per_device}) gives each device {per_device} stages, and there are {stages}; "
            f"use a number that divides {stages}"
        )
    if per_device == 1:
        return one_f_one_b(stages, micro_batches)
    devices = stages // per_device
    groups = _groups(micro_batches, devices)
    forwards = [(m, turn) for group in groups for turn in range(per_device) for m in group]
    backwards = [(m, turn) for group in groups for turn in reversed(range(per_device)) for m in group]
    lists = []
    for device in range(devices):
        # The last device begins its last turn when the first group has gone round; each device before is two ahead
        # of the next: one for the way there, one for the way back.
        ahead = min(len(forwards), (per_device - 1) * len(groups[0]) + 2 * (devices - 1 - device))
        actions = [Action(FORWARD, m, turn * devices + device) for m, turn in forwards[:ahead]]
        for k, (m, turn) in enumerate(backwards):
            if ahead + k < len(forwards):
                first, there = forwards[ahead + k]
                actions.append(Action(FORWARD, first, there * devices + device))
            actions.append(Action(BACKWARD, m, turn * devices + device))
        lists.append(tuple(actions))
    return Schedule(tuple(lists))


def _groups(micro_batches: int, devices: int) -> list[range]:
    """Runs of micro-batches, the longer ones first, none shorter than `devices` unless it is the only one."""
    count = max(1, micro_batches // devices)
    length, longer = divmod(micro_batches, count)
    ends = list(accumulate(length + (k < longer) for k in range(count)))
    return [range(start, end) for start, end in zip([0, *ends[:-1]], ends, strict=True)]
