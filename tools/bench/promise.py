"""What a plan promises: the boxings of a compiled step that send bytes."""

from __future__ import annotations

from typing import Any


def sending(step: Any, *args: Any) -> list[Any]:
    """The moves with bytes of a `wh.function`, compiled for these arguments. Over several ranks all must call it."""
    from whaleish.report.explain import moved
    from whaleish.rewrite.expand import expand

    program = step.program_for(*args)
    return moved(*expand(program.capture.graph, program.plan))


def bytes_per_host(step: Any, *args: Any, different: float = 1.0) -> float:
    """What each host sends in a step, with one rank on each.

    Args:
      different: how many of the rows that ranks merge before they send them are different ones, from 0 to 1.
    """
    import whaleish as wh

    sent = sum(move.nbytes * (different if move.at_most else 1.0) for move in sending(step, *args))
    return float(sent / wh.size())
