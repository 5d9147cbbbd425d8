"""GPipe: all forwards, then all backwards."""

from __future__ import annotations

from whaleish.schedule.action import BACKWARD, FORWARD, Action
from whaleish.schedule.schedule import Schedule


def gpipe(stages: int, micro_batches: int) -> Schedule:
    """One stage on each device; every stage holds the activations of all micro-batches at once.

        F0 F1 F2 F3 .  .  B0 B1 B2 B3
        .  F0 F1 F2 F3 B0 B1 B2 B3

    Huang et al., "GPipe", 2019, arXiv:1811.06965. Of the whole time (S - 1) / (M + S - 1) is bubble. Backwards are in
    the order of the forwards, so that gradients are added up in the order of all other schedules.
    """
    kinds = [Action(kind, m, 0) for kind in (FORWARD, BACKWARD) for m in range(micro_batches)]
    return Schedule(tuple(tuple(action._replace(stage=stage) for action in kinds) for stage in range(stages)))
