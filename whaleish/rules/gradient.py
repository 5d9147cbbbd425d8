"""Where the gradient of a weight under `replica(zero=...)` is shared out: on one device nothing happens here.

Capture writes a `Gradient` behind the op that makes such a gradient, and the planner fixes the layout in which it reads
and leaves it. No kernel has its name.
"""

from __future__ import annotations

from whaleish.rules.rule import Lowering, OpView, Ref, Signature, registry
from whaleish.sbp import P, S

GRADIENT = "Gradient"


def _as_given(part: Lowering) -> list[Ref]:
    return [part.input(0)]


@registry.register(GRADIENT, lower=_as_given)
def gradient(op: OpView) -> list[Signature]:
    return [Signature((sbp,), (sbp,)) for sbp in (*map(S, range(op.inputs[0].rank)), P)]
