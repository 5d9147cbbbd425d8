"""Actions: what a device does at one time, for one micro-batch of one stage."""

from __future__ import annotations

import re
from typing import NamedTuple

FORWARD, BACKWARD, WEIGHT = "F", "B", "W"
RECEIVE_FORWARD, SEND_FORWARD, RECEIVE_BACKWARD, SEND_BACKWARD = "RF", "SF", "RB", "SB"
COMPUTE = (FORWARD, BACKWARD, WEIGHT)
TRANSFERS = (RECEIVE_FORWARD, SEND_FORWARD, RECEIVE_BACKWARD, SEND_BACKWARD)

RECEIVES = {FORWARD: RECEIVE_FORWARD, BACKWARD: RECEIVE_BACKWARD}
"""How what an action reads arrives from another device."""

SENDS = {FORWARD: SEND_FORWARD, BACKWARD: SEND_BACKWARD}
"""How what an action made goes to another device."""

SOURCE = {FORWARD: -1, BACKWARD: 1}
"""Where the stage that makes what an action reads stands from the action's own stage."""

_PATTERN = re.compile(r"(F|B|W|RF|SF|RB|SB)(\d+)(?:\.(\d+))?")


class Action(NamedTuple):
    """One action.

    Attributes:
      kind: what is done.
        F: the forward pass.
        B: the backward pass; of a stage that has Ws only its first half, the gradient of the stage's input.
        W: the other half, the gradients of the stage's weights.
        RF, RB: receiving what F or B reads from the neighbouring stage, an activation or a gradient.
        SF, SB: sending what F or B made to the other neighbour.
      micro_batch, stage: for which; both count from 0.
    """

    kind: str
    micro_batch: int
    stage: int

    @property
    def is_transfer(self) -> bool:
        return self.kind in TRANSFERS

    def text(self, alone: int | None = None) -> str:
        """`F0.2` for the forward of micro-batch 0 on stage 2; `F0` where 2 is `alone`, the device's only stage."""
        return f"{self.kind}{self.micro_batch}" + ("" if self.stage == alone else f".{self.stage}")

    def __str__(self) -> str:
        return self.text()

    @classmethod
    def parse(cls, text: str, alone: int) -> Action:
        """The inverse of `text`: an action that names no stage is of stage `alone`."""
        match = _PATTERN.fullmatch(text)
        if match is None:
            raise ValueError(
                f"{text!r} is not an action; write {', '.join(COMPUTE + TRANSFERS[:-1])} or {TRANSFERS[-1]}, then the "
                "micro-batch, and where the device has several stages a dot and the stage: F0, B3, F0.2"
            )
        return cls(match[1], int(match[2]), alone if match[3] is None else int(match[3]))
