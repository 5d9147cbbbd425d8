"""1F1B: each stage alternates between one forward and one backward."""

from __future__ import annotations

from whaleish.schedule.action import BACKWARD, FORWARD, Action
from whaleish.schedule.schedule import Schedule


def one_f_one_b(stages: int, micro_batches: int) -> Schedule:
    """One stage on each device; stage s holds the activations of min(M, S - s) micro-batches.

        F0 F1 .  B0 F2 B1 F3 B2 .  B3
        .  F0 B0 F1 B1 F2 B2 F3 B3

    Narayanan et al., "PipeDream", 2019, arXiv:1806.03377; with all weights updated after the last backward it is their
    PipeDream-Flush, 2021, arXiv:2006.09503. Its bubble is that of `gpipe`: (S - 1) / (M + S - 1) of the whole time.
    """
    devices = []
    for stage in range(stages):
        ahead = min(micro_batches, stages - 1 - stage)  # forwards before the first backward, less one
        actions = [Action(FORWARD, m, stage) for m in range(ahead)]
        for m in range(micro_batches):
            if ahead + m < micro_batches:
                actions.append(Action(FORWARD, ahead + m, stage))
            actions.append(Action(BACKWARD, m, stage))
        devices.append(tuple(actions))
    return Schedule(tuple(devices))
