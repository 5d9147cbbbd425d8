"""`replica(zero=...)`: results are those of one device, and of the state each device has its share."""

from __future__ import annotations

import pytest

from tests.products import either, pairwise
from tests.transparency.sharded import RULES, SCOPES, STAGED, TOKENS, WIDTH, Outcome, train

EVEN = 1.1
"""Of the largest part of a dim over an even one: 35 of 64 columns, say, over 2 devices."""


def check(outcome: Outcome, zero: int, scopes: str, parts: int) -> None:
    assert outcome.losses <= 1e-9
    assert outcome.variables <= 1e-9
    assert outcome.slots <= EVEN / parts
    assert outcome.weights <= (EVEN / parts if zero == 3 else 1 / (2 if "split" in scopes else 1))
    if zero > 1:
        assert outcome.gradients <= EVEN / parts
    if "accumulate" in scopes and zero > 1:
        return  # the gradients of each micro-batch are sent
    # Without pieces only the rows of an embedding's gradient are gathered, and the new table by nobody.
    table = 2 * 8 * TOKENS * WIDTH * (parts - 1)
    assert outcome.sent <= outcome.plain * (1.5 if zero == 3 else 1.0) + table + 1000


def parts_of(scopes: str, devices: int) -> int:
    return 2 if scopes in STAGED else devices


@pytest.mark.parametrize(
    *pairwise(
        rule=either(["adamw", "adafactor", "scaled"], RULES),
        zero=[1, 2, 3],
        scopes=[scopes for scopes in SCOPES if scopes != "split"],
        world_of=[4],
    ),
    indirect=["world_of"],
)
def test_in_one_process(rule: str, zero: int, scopes: str, world_of: int) -> None:
    check(train(rule, zero, scopes, 10), zero, scopes, parts_of(scopes, world_of))


@pytest.mark.parametrize(
    *pairwise(rule=either(["adamw"], RULES), zero=[1, 2, 3], scopes=["replica"], world_of=[2, 3]), indirect=["world_of"]
)
def test_on_other_numbers_of_devices(rule: str, zero: int, scopes: str, world_of: int) -> None:
    check(train(rule, zero, scopes, 10), zero, scopes, world_of)


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("ranks", "cases"),
    [
        (2, [("adamw", 1, "replica"), ("lion", 2, "replica x accumulate(3)"), ("scaled", 3, "replica")]),
        (3, [("sgd", 2, "replica"), ("adafactor", 3, "replica")]),
        (4, [("adamw", 3, "replica x split"), ("lion", 3, "pipeline(3)"), ("sgd", 1, "stages")]),
    ],
    indirect=["ranks"],
)
def test_on_real_ranks(ranks, cases: list[tuple[str, int, str]]) -> None:
    def run(cases):
        return [train(*case, 10) for case in cases]

    for outcomes in ranks.run(run, cases, timeout=200):
        for outcome, (_, zero, scopes) in zip(outcomes, cases, strict=True):
            check(outcome, zero, scopes, parts_of(scopes, ranks.size))
