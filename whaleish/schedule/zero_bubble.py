"""ZB-H1: 1F1B whose bubbles are filled with the gradients of weights, for which nobody waits."""

from __future__ import annotations

from whaleish.schedule.action import BACKWARD, FORWARD, WEIGHT, Action
from whaleish.schedule.schedule import Schedule


def zb_h1(stages: int, micro_batches: int) -> Schedule:
    """One stage on each device; the backward is two actions, B for the gradient of the input and W for the weights'.

        F0 F1 .  B0 W0 F2 B1 W1 F3 B2 W2 B3 W3
        .  F0 B0 F1 B1 W0 F2 B2 W1 F3 B3 W2 W3

    Stage s delays its Ws by s micro-batches. So every stage holds min(M, S) micro-batches, as the first stage of 1F1B
    does, and the peak over all devices is that of 1F1B.

    Qi, Wan, Huang and Lin, "Zero Bubble Pipeline Parallelism", 2023, arXiv:2401.10241, sections 2.1 and 2.3: with F, B
    and W the seconds of each, a device's bubble is (S - 1)(F + B - W), against (S - 1)(F + B + W) of 1F1B. That holds
    from M = S on and while W <= F. Fewer micro-batches have fewer Ws to fill it with: (S - 1)(F + B) - (M - 1) W.
    """
    devices = []
    for stage in range(stages):
        ahead = min(micro_batches, stages - 1 - stage)
        actions = [Action(FORWARD, m, stage) for m in range(ahead)]
        for m in range(micro_batches):
            if ahead + m < micro_batches:
                actions.append(Action(FORWARD, ahead + m, stage))
            actions.append(Action(BACKWARD, m, stage))
            if m >= stage:
                actions.append(Action(WEIGHT, m - stage, stage))
        actions += [Action(WEIGHT, m, stage) for m in range(max(0, micro_batches - stage), micro_batches)]
        devices.append(tuple(actions))
    return Schedule(tuple(devices))
