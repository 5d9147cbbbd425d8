"""Ranks that differ, and ranks that do not come: every rank raises in time, and says what differs."""

import time

import pytest

from whaleish import world
from whaleish.agreement import DisagreementError, _difference, agree

PLAN = "mesh data:2\nkernel S(0)\nbias B"


def test_alone_there_is_nothing_to_agree_on():
    world.init(virtual_devices=4)
    agree("the plan", PLAN)


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (["plan\na\nb", "plan\na\nc", "plan\na\nb"], ["plan, at line 2", "ranks 0, 2: b", "rank 1: c"]),
        (["plan\na", "plan\na\nb"], ["at line 2", "rank 0: (nothing)", "rank 1: b"]),
        (["plan\na\nb", "plan\na"], ["at line 2", "rank 0: b", "rank 1: (nothing)"]),
        (["plan\na", "inputs\na"], ["what they do next", "rank 0: plan", "rank 1: inputs"]),
        (["plan\na"] * 12 + ["plan\nb"], ["ranks 0, 1, 2, 3, 4, 5, 6, 7 and 4 more: a", "rank 12: b"]),
    ],
)
def test_the_first_difference_is_named(texts, said):
    message = _difference(texts)
    for part in said:
        assert part in message


def attempt(payloads, delays=(0, 0), limit=14.0):
    time.sleep(delays[world.rank()])
    start = time.monotonic()
    try:
        agree("the plan of step", payloads[world.rank()], limit)
    except DisagreementError as error:
        return time.monotonic() - start, type(error).__name__, str(error)
    return time.monotonic() - start, "", ""


@pytest.mark.ranks
def test_ranks_that_differ(ranks):
    assert [kind for _, kind, _ in ranks.run(attempt, [PLAN, PLAN])] == ["", ""]
    for seconds, kind, message in ranks.run(attempt, [PLAN, PLAN.replace("S(0)", "S(1)")]):
        assert (seconds < 15, kind) == (True, "DisagreementError")
        for part in ("the plan of step, at line 2", "rank 0: kernel S(0)", "rank 1: kernel S(1)"):
            assert part in message


@pytest.mark.ranks
def test_ranks_that_come_late_or_never(ranks):
    first, late = ranks.run(attempt, [PLAN, PLAN], delays=(0, 3), limit=1.0)
    assert (first[1], late[1]) == ("AbsentError", "AbsentError")
    assert first[0] < 2
    assert "not all 2 ranks came within 1 s" in first[2]
    assert "rank 0 came first, waited, and had given up" in late[2]
    # Both have had this meeting; the next one takes place.
    assert [kind for _, kind, _ in ranks.run(attempt, [PLAN, PLAN])] == ["", ""]
