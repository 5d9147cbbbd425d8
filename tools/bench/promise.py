"""What a plan promises: the boxings of a compiled step that send bytes."""

from __future__ import annotations

from typing import Any


def sending(step: Any, *args: Any) -> list[Any]:
    """The moves with bytes of a `wh.function`, compiled for these arguments. Over several ranks all must call it."""
    from whaleish.report.explain import moved
    from whaleish.rewrite.expand import expand

    program = step.program_for(*args)
    return moved(*expand(program.capture.graph, program.plan))


def bytes_per_host(step: Any, *args: Any) -> float:
    """What each host sends in a step, with one rank on each."""
    import whaleish as wh

    return float(sum(move.nbytes for move in sending(step, *args)) / wh.size())
