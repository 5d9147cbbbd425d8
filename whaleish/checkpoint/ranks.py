"""What ranks tell each other while a checkpoint is written or read: all of them go on, or all raise."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from whaleish.agreement import digest
from whaleish.checkpoint.errors import CheckpointError
from whaleish.meeting import AbsentError, Meeting, name_ranks, share
from whaleish.world import world

CALL_TIMEOUT = 300.0
"""Seconds to wait for the other ranks to call `save` or `restore` too."""

WRITE_TIMEOUT = 1800.0
"""The same for their writing and reading to end: as much as ranks may differ in that."""


@dataclass(frozen=True)
class Outcome:
    """How a rank's work went: what it says to the others, or why it failed."""

    text: str = ""
    failure: str = ""


def exchange(what: str, own: Outcome, timeout: float = WRITE_TIMEOUT) -> list[Outcome]:
    """The outcomes of all ranks, by rank; to be called by all of them. Alone, the own.

    Args:
      what: names the occasion: ranks meet by it and by how many of its kind there were.

    Raises:
      AbsentError: not all ranks came.
    """
    here = world()
    if not here.distributed or here.size == 1:
        return [own]
    meeting: Meeting[list[Outcome]] = Meeting.numbered(f"checkpoint.{what}", digest(what.encode()))

    def tell(_: list[bytes]) -> list[Outcome]:
        # Names that stay: for a new one a function is traced, 50 ms on a busy machine.
        told = share(f"whaleish.checkpoint.{what}", json.dumps([own.text, own.failure]).encode())
        return [Outcome(*json.loads(blob)) for blob in told]

    return meeting.attend(timeout, tell)


def attempt(work: Callable[[], str]) -> Outcome:
    """What a rank's work says, or how it failed."""
    try:
        return Outcome(work())
    except Exception as error:
        kind = "" if isinstance(error, CheckpointError) else f"{type(error).__name__}: "
        return Outcome(failure=f"{kind}{error}")


def together(what: str, work: Callable[[], str], timeout: float = WRITE_TIMEOUT, explain: str = "") -> list[str]:
    """All ranks do a work of their own, and hear what the others' say.

    Args:
      explain: begins the error: "no checkpoint was saved in 'x'".

    Raises:
      CheckpointError: on all ranks, where the work of one failed; or not all came.
    """
    own = attempt(work)
    try:
        outcomes = exchange(what, own, timeout)
    except Exception as error:  # ranks that did not come, or Horovod's own when one has ended
        about = f" (here: {own.failure})" if own.failure else ""
        told = "all ranks must call it together: " if isinstance(error, AbsentError) else "another rank has ended: "
        raise CheckpointError(f"{explain}: {told}{error}{about}") from error
    refuse(outcomes, explain)
    return [outcome.text for outcome in outcomes]


def refuse(outcomes: Sequence[Outcome], explain: str) -> None:
    """Raises what went wrong on any rank, the same on all; ranks that failed alike are named together."""
    by_failure: dict[str, list[int]] = {}
    for rank, outcome in enumerate(outcomes):
        if outcome.failure:
            by_failure.setdefault(outcome.failure, []).append(rank)
    if not by_failure:
        return
    if len(by_failure) == 1 and len(next(iter(by_failure.values()))) == len(outcomes):
        raise CheckpointError(f"{explain}: {next(iter(by_failure))}")
    told = [f"rank {name_ranks(ranks)}: {failure}" for failure, ranks in by_failure.items()]
    raise CheckpointError(f"{explain}: " + "\n".join(told))


__all__ = ["CALL_TIMEOUT", "WRITE_TIMEOUT", "Outcome", "attempt", "exchange", "refuse", "together"]
