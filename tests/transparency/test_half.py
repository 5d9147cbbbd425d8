"""Half precision: loss scales agree everywhere, sums are rounded once, masters stay float32 and in pieces."""

from __future__ import annotations

from math import inf

import numpy as np
import pytest

import whaleish as wh
from tests.products import pairwise
from tests.transparency.halved import (
    GROWS_AFTER,
    OVERFLOWS_AT,
    SCALE,
    SCOPES,
    STAGED,
    STEPS,
    Outcome,
    add_up,
    sent_in,
    train,
)

TYPES = ["float16", "bfloat16"]
EVEN = 1.1


def expected_scales() -> list[float]:
    scale, good, found = SCALE, 0, []
    for step in range(STEPS):
        good = 0 if step == OVERFLOWS_AT else good + 1
        scale *= 0.5 if step == OVERFLOWS_AT else 2.0 if good == GROWS_AFTER else 1.0
        good %= GROWS_AFTER
        found.append(scale)
    return found


def check(outcome: Outcome, zero: int, scopes: str, devices: int) -> None:
    alone, here = outcome.scales
    assert here == alone == expected_scales()
    assert outcome.skipped
    assert all(np.isfinite(weight).all() for weight in outcome.weights)
    # Parts round what they add up, by as much as one device rounds its own sums.
    assert outcome.losses <= 2
    assert outcome.variables <= 2
    if zero == 3 or scopes == "split":
        assert outcome.stored <= EVEN / (2 if scopes in STAGED else devices)


@pytest.mark.parametrize(
    *pairwise(dtype=TYPES, policy=[False, True], zero=[0, 1, 2, 3], scopes=[*SCOPES], world_of=[4]),
    indirect=["world_of"],
)
def test_in_one_process(dtype: str, policy: bool, zero: int, scopes: str, world_of: int) -> None:
    check(train(dtype, policy, zero, scopes), zero, scopes, world_of)


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("ranks", "cases"),
    [
        (2, [("float16", False, 3, "replica"), ("bfloat16", True, 2, "replica"), ("float16", True, 0, "split")]),
        (4, [("float16", False, 1, "replica x split"), ("float16", False, 3, "pipeline(2)")]),
    ],
    indirect=["ranks"],
)
def test_an_overflow_on_one_rank_is_skipped_by_all(ranks, cases) -> None:
    def run(cases):
        return [train(*case) for case in cases]

    outcomes = ranks.run(run, cases, timeout=200)
    for number, (_, _, zero, scopes) in enumerate(cases):
        of_ranks = [outcome[number] for outcome in outcomes]
        for outcome in of_ranks:
            check(outcome, zero, scopes, ranks.size)
            assert all(map(np.array_equal, outcome.weights, of_ranks[0].weights))


# Each of four parts has one summand. Of 256 + 1 + 1 + 1 little is left if it is rounded after each.
SUMS = {
    "finite only in parts": ("float16", [2e4, 2e4, 2e4, 2e4], inf),
    "finite only in all": ("float16", [4e4, 4e4, -4e4, 0.0], 4e4),
    "infinite in one": ("float16", [0.0, 0.0, 0.0, 1e5], inf),
    "float16": ("float16", [2048.0, 1.0, 1.0, 2.0], 2052.0),
    "bfloat16": ("bfloat16", [256.0, 1.0, 1.0, 2.0], 260.0),
}


@pytest.mark.parametrize("case", SUMS)
@pytest.mark.parametrize(
    ("scope", "world_of"), [("replica", 4), ("accumulate", 1), ("pipeline", 1)], indirect=["world_of"]
)
def test_sums_are_those_of_one_device(case: str, scope: str, world_of: int) -> None:
    dtype, summands, total = SUMS[case]
    alone, here = add_up(dtype, summands, scope)
    assert alone == here == pytest.approx(total)


@pytest.mark.ranks
@pytest.mark.parametrize("ranks", [4], indirect=True)
def test_sums_over_ranks_are_those_of_one_device(ranks) -> None:
    def run(sums):
        return [add_up(dtype, summands, "replica") for dtype, summands, _ in sums]

    for found in ranks.run(run, list(SUMS.values())):
        for (alone, here), (_, _, total) in zip(found, SUMS.values(), strict=True):
            assert alone == here == pytest.approx(total)


@pytest.mark.parametrize("world_of", [4], indirect=True)
@pytest.mark.parametrize("policy", [False, True])
@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_half_as_much_is_sent(zero: int, policy: bool, world_of: int) -> None:
    """Gradients are summed, and weights under zero=3 gathered, in half precision; new weights of others are float32."""
    share = sent_in("bfloat16", policy, zero) / sent_in("float32", policy, zero)
    assert share <= (0.51 if zero in (0, 3) else 0.76)


def test_half_by_name_is_refused() -> None:
    with pytest.raises(TypeError, match=r"wh\.half, which changes what is computed .* Enter it in the step"):
        wh.function(lambda x: x, rules={"dense": wh.half()})
