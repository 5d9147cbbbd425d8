"""Whole programs drawn at random compute, divided, what they compute on one device.

On a failure hypothesis finds a small program that fails; the error lists its code, and under each line the ops that it
became which are divided, with their layouts.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, reject, seed, settings
from hypothesis import strategies as st

from tests.products import all_cases
from tests.programs.comparison import Tally, check_pinned, check_planned
from tests.programs.program import Program
from tests.programs.strategy import chances, programs
from whaleish.mesh import Axis, Mesh
from whaleish.planner import PlanError

MESHES = [
    Mesh((Axis("d", 2),)),
    Mesh((Axis("d", 3),)),
    Mesh((Axis("d", 4),)),
    Mesh((Axis("d", 2, (3, 1)),)),
    Mesh((Axis("x", 2), Axis("y", 2))),
    Mesh((Axis("x", 2, (1, 2)), Axis("y", 2))),
]

SCOPES = {
    "replica": (3, ["", "wh.replica()"]),
    "split": (2, ["", "wh.split()"]),
    "shares": (2, ["", "wh.replica(shares=[3, 1])", "wh.split()"]),
    "replica x split": (4, ["", "wh.replica(2), wh.split()", "wh.replica()"]),
    "split x replica": (4, ["wh.split(2), wh.replica()", "wh.split()"]),
}
"""Scopes that a program may have: how many devices, and code for each."""

TOGETHER = 4
"""Programs in one step, at most: compiling them together costs less, and they must not disturb one another."""


def run(name: str, count: int, kind: st.SearchStrategy[Any], check: Callable[[list[Any]], None]) -> None:
    """Checks steps of several programs, or what `kind` draws in their place, the same ones in every run."""

    @seed(zlib.crc32(name.encode()))
    @settings(
        max_examples=count * (6 if all_cases() else 1),
        derandomize=True,
        database=None,
        deadline=None,
        report_multiple_bugs=False,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.lists(kind, min_size=1, max_size=TOGETHER))
    def steps(drawn: list[Any]) -> None:
        check(drawn)

    steps()


@pytest.fixture(scope="module")
def tally() -> Iterator[Tally]:
    """What all tests here cover together; where all of them ran, that must be enough."""
    tally = Tally()
    yield tally
    print(f"\n{tally}")
    if tally.checks == len(MESHES) + len(SCOPES):
        assert tally.programs >= 500
        assert len(tally.divided) >= 100


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("world_of", "mesh"), [(mesh.size, mesh) for mesh in MESHES], indirect=["world_of"])
def test_random_layouts(world_of: int, mesh: Mesh, tally: Tally) -> None:
    count = 39 if len(mesh.axes) == 1 else 19
    run(mesh.text(), count, st.tuples(programs(), chances), lambda drawn: check_pinned(drawn, mesh, tally))
    tally.checks += 1


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("world_of", "name"), [(SCOPES[name][0], name) for name in SCOPES], indirect=["world_of"])
def test_random_scopes(world_of: int, name: str, tally: Tally) -> None:
    def check(drawn: list[Program]) -> None:
        try:
            check_planned(drawn, tally)
        except PlanError:  # a weight that is too small to be sharded
            reject()

    run(name, 12, programs(SCOPES[name][1]), check)
    tally.checks += 1
