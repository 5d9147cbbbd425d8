"""The volume table: the figures of the design's table for one axis, whatever the number of parts."""

import itertools

import pytest

from whaleish.boxing.volume import volume
from whaleish.sbp import PMAX, PMIN, B, P, S, Sbp

T = 1200.0
ALL = [S(0), S(1), S(0, 3), B, P, PMAX, PMIN]


@pytest.mark.parametrize("p", [2, 3, 4])
@pytest.mark.parametrize(
    ("source", "target", "factor"),
    [
        (S(0), S(1), lambda p: (p - 1) / p),
        (S(0), S(0, 3), lambda p: (p - 1) / p),
        (S(1), B, lambda p: p - 1),
        (S(0), P, lambda p: 0),
        (B, S(1), lambda p: 0),
        (B, P, lambda p: 0),
        (B, PMAX, lambda p: 0),
        (P, S(0), lambda p: p - 1),
        (P, B, lambda p: 2 * (p - 1)),
        (PMAX, B, lambda p: 2 * (p - 1)),
        (PMIN, S(1), lambda p: 2 * (p - 1)),
        (S(0), PMAX, lambda p: p - 1),
        (PMAX, P, lambda p: 2 * (p - 1)),
    ],
)
def test_the_table(source: Sbp, target: Sbp, factor, p: int) -> None:
    assert volume(source, target, T, p) == pytest.approx(factor(p) * T)


@pytest.mark.parametrize(("source", "target"), list(itertools.product(ALL, ALL)))
def test_every_pair(source: Sbp, target: Sbp) -> None:
    assert volume(source, target, T, 1) == 0
    if source == target:
        assert volume(source, target, T, 4) == 0
    figures = [volume(source, target, T, p) for p in range(1, 9)]
    assert figures == sorted(figures)
    assert volume(source, target, 2 * T, 3) == pytest.approx(2 * volume(source, target, T, 3))
    # Going by way of the whole is never cheaper than going straight, as far as the pair itself counts.
    assert figures[3] <= volume(source, B, T, 4) + volume(B, target, T, 4)
