"""How many bytes cross between devices when a tensor changes its layout on one axis."""

from __future__ import annotations

from collections.abc import Callable

from whaleish.sbp import Sbp

_INFINITE = float("inf")


def volume(source: Sbp, target: Sbp, nbytes: float, parts: int) -> float:
    """Total bytes sent by all devices of one axis of `parts` parts, for a logical tensor of `nbytes`.

    Infinite where no conversion exists (a value cannot become a maximum of parts that sum to it, and so on).
    The figures are those of the OneFlow paper's table 2 (Yuan et al., 2021), for the same devices on both sides.
    """
    if source == target or parts == 1:
        return 0.0
    return _VOLUMES.get((source.kind[:1], target.kind[:1]), _never)(source, target, nbytes, parts)


def _never(source: Sbp, target: Sbp, nbytes: float, parts: int) -> float:
    return _INFINITE


def _partial_to_partial(source: Sbp, target: Sbp, nbytes: float, parts: int) -> float:
    """One partial kind becomes another only by way of the whole value."""
    return 2 * (parts - 1) * nbytes


_VOLUMES: dict[tuple[str, str], Callable[[Sbp, Sbp, float, int], float]] = {
    ("S", "S"): lambda s, t, nbytes, p: (p - 1) / p * nbytes,
    ("S", "B"): lambda s, t, nbytes, p: (p - 1) * nbytes,
    ("S", "P"): lambda s, t, nbytes, p: 0.0 if t.kind == "P" else (p - 1) * nbytes,
    ("B", "S"): lambda s, t, nbytes, p: 0.0,
    ("B", "P"): lambda s, t, nbytes, p: 0.0,
    ("P", "S"): lambda s, t, nbytes, p: (p - 1) * nbytes if s.kind == "P" else 2 * (p - 1) * nbytes,
    ("P", "B"): lambda s, t, nbytes, p: 2 * (p - 1) * nbytes,
    ("P", "P"): _partial_to_partial,
    # Each part's own value: made whole by a mean; a partial sum is read as it is where only the own summand is wanted.
    ("L", "B"): lambda s, t, nbytes, p: 2 * (p - 1) * nbytes,
    ("L", "S"): lambda s, t, nbytes, p: 2 * (p - 1) * nbytes,
    ("B", "L"): lambda s, t, nbytes, p: 0.0,
    ("P", "L"): lambda s, t, nbytes, p: 0.0 if s.kind == "P" else _INFINITE,
}
