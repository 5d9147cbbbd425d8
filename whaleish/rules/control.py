"""What joins the bodies of loops and conditions to the rest of the step.

A condition is the ops of its branches, then a `Condition` that reads which of them to run, then a `ConditionResult` for
each result, which reads that result of every branch. A loop is a `LoopVariable` for each carried value, which reads its
first value; the ops of the test and of the body; a `NextValue` for each, which reads the variable and what it becomes;
then a `Loop` that reads whether to go on, and a `LoopResult` for each, which reads the variable after the last
iteration. None has a kernel: `rewrite/control.py` writes them. Layouts pass through them unchanged.
"""

from __future__ import annotations

from whaleish.rules.forms import numeric, real
from whaleish.rules.rule import OpView, Signature, TensorSpec, registry
from whaleish.sbp import PMAX, PMIN, P, S, Sbp

CONDITION, CONDITION_RESULT = "Condition", "ConditionResult"
LOOP, LOOP_VARIABLE, NEXT_VALUE, LOOP_RESULT = "Loop", "LoopVariable", "NextValue", "LoopResult"
CONTROL = frozenset({CONDITION, CONDITION_RESULT, LOOP, LOOP_VARIABLE, NEXT_VALUE, LOOP_RESULT})


@registry.register(CONDITION, LOOP)
def decision(op: OpView) -> list[Signature]:
    """All parts must decide alike."""
    return []


@registry.register(CONDITION_RESULT, LOOP_VARIABLE, NEXT_VALUE, LOOP_RESULT)
def passed(op: OpView) -> list[Signature]:
    """One value in several places."""
    inputs, outputs = len(op.inputs), len(op.outputs)
    return [Signature((sbp,) * inputs, (sbp,) * outputs) for sbp in layouts(op.inputs[0])]


def layouts(spec: TensorSpec) -> list[Sbp]:
    """Every layout that a tensor may have besides B."""
    sums = [P] if numeric(spec) else []
    return [*map(S, range(spec.rank)), *sums, *([PMAX, PMIN] if real(spec) else [])]
