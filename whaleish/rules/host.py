"""Copies to the memory of the host and back to the device, which leave layouts as they are. Passes write them.

No kernel has their names. Each is written as an identity on the device that it copies to; TensorFlow does the copying.
"""

from __future__ import annotations

from whaleish.rules.rule import Lowering, OpView, Ref, Signature, registry
from whaleish.sbp import P, S

TO_HOST, TO_DEVICE = "ToHost", "ToDevice"


def _identity(part: Lowering) -> list[Ref]:
    return [part.emit("Identity", [part.input(0)])]


@registry.register(TO_HOST, TO_DEVICE, lower=_identity)
def copied(op: OpView) -> list[Signature]:
    return [Signature((sbp,), (sbp,)) for sbp in (*map(S, range(op.inputs[0].rank)), P)]
