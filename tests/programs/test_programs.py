"""Random programs, divided at random, compute what one device computes."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.products import all_cases
from tests.programs.comparison import Tally, check_pinned
from tests.programs.strategy import programs
from whaleish.mesh import Axis, Mesh

MESHES = [
    Mesh((Axis("d", 2),)),
    Mesh((Axis("d", 3),)),
    Mesh((Axis("d", 4),)),
    Mesh((Axis("d", 2, (3, 1)),)),
    Mesh((Axis("x", 2), Axis("y", 2))),
    Mesh((Axis("x", 2, (1, 2)), Axis("y", 2))),
]

STEPS = 20
TOGETHER = 6

SETTINGS = settings(
    max_examples=STEPS * 20 if all_cases() else STEPS,
    derandomize=True,
    database=None,
    deadline=None,
    report_multiple_bugs=False,
    phases=[Phase.generate, Phase.shrink],
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.parametrize(("world_of", "mesh"), [(m.size, m) for m in MESHES], ids=lambda v: v.text() if isinstance(v, Mesh) else "", indirect=["world_of"])
@pytest.mark.timeout(3000)
def test_random_layouts(world_of, mesh) -> None:
    tally = Tally()
    @seed(zlib.crc32(mesh.text().encode()))
    @settings(SETTINGS)
    @given(st.lists(programs(), min_size=1, max_size=TOGETHER), st.randoms(use_true_random=False))
    def check(drawn, rng):
        check_pinned(drawn, mesh, rng, tally)
    check()
    print(tally)
