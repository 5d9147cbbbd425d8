"""What ranks must agree on before they compute together."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

import numpy as np

from whaleish import world as world_
from whaleish.meeting import AbsentError, DisagreementError, Meeting, name_ranks, share

AGREE_TIMEOUT = 14.0
"""Seconds to wait for the other ranks in `agree`."""

LIKELY_CAUSES = (
    "Likely causes: another rank raised an error or has ended, is still loading or tracing, or took another branch, so "
    "that it calls other steps, or the same ones in another order. Horovod's log names the ranks that it waits for."
)
"""Why a rank waits for others in vain."""

_DIGEST_BYTES = 16


def digest(data: bytes | np.ndarray) -> bytes:
    """A short hash, to compare values without sending them."""
    view = data if isinstance(data, bytes) else np.ascontiguousarray(data).reshape(-1).view(np.uint8).data
    return hashlib.blake2b(view, digest_size=_DIGEST_BYTES).digest()


def agree(
    what: str, payload: str, timeout: float = AGREE_TIMEOUT, *, place_of: Callable[[int], str] = lambda line: ""
) -> None:
    """Checks that all ranks have the same text; to be called by all ranks. Alone it does nothing.

    Args:
      what: names the thing in errors: "the plan of train_step".
      payload: the text to compare. Only a hash travels unless ranks differ.
      timeout: seconds to wait for the other ranks.
      place_of: where a line of the payload (counted from 0) comes from in the user's code on this rank; "" if nowhere.

    Raises:
      DisagreementError: on every rank, with the ranks and the first line in which they differ; `AbsentError` if not
        all ranks called `agree` in time.
    """
    world = world_.world()
    if not world.distributed or world.size == 1:
        return
    text = f"{what}\n{payload}"

    def compare(digests: list[bytes]) -> None:
        if len(set(digests)) > 1:
            texts = [blob.decode() for blob in share(f"{meeting.name}.text", text.encode())]
            raise DisagreementError(_difference(texts, place_of))

    meeting: Meeting[None] = Meeting.numbered("agree", digest(text.encode()))
    try:
        meeting.attend(timeout, compare)
    except AbsentError as error:
        raise AbsentError(f"ranks could not compare {what}: {error} {LIKELY_CAUSES}") from error


def _difference(texts: Sequence[str], place_of: Callable[[int], str] = lambda line: "") -> str:
    """Says how the texts of the ranks differ, where the first one that does begins to."""
    lines = [text.split("\n") for text in texts]
    other = next(rank for rank, text in enumerate(texts) if text != texts[0])
    length = max(len(lines[0]), len(lines[other]))
    padded = [line + ["(nothing)"] * (length - len(line)) for line in lines]
    place = next(index for index in range(length) if padded[0][index] != padded[other][index])
    groups: dict[str, list[int]] = {}
    for rank, line in enumerate(padded):
        groups.setdefault(line[place] if place < len(line) else "(nothing)", []).append(rank)
    heads = sorted({line[0] for line in lines})
    where = "what they do next" if place == 0 else f"{' / '.join(heads)}, at line {place}"
    values = "\n".join(f"  rank{'s' if len(ranks) > 1 else ''} {name_ranks(ranks)}: {v}" for v, ranks in groups.items())
    if place and (source := place_of(place - 1)):
        values += f"\nOn this rank that is {source}."
    return f"ranks differ in {where}:\n{values}\nAll ranks must run the same program, in the same order."


__all__ = ["AGREE_TIMEOUT", "LIKELY_CAUSES", "AbsentError", "DisagreementError", "agree", "digest"]
