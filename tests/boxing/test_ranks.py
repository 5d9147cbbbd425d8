"""Boxing between real ranks: every pair of layouts moves the value right, on every part, call after call."""

import pytest

from tests.boxing.crossing import DTYPES, Crossing, cross_ranks
from tests.products import pairwise
from whaleish.mesh import Axis, Mesh

pytestmark = pytest.mark.ranks
AXES = {"even": (Axis("d", 2), (0, 1)), "turned": (Axis("d", 2), (1, 0)), "shares": (Axis("d", 2, (3, 1)), (0, 1))}
SHAPES = [(12, 4), (7, 5), (1, 6), (0, 3), (6, 2, 2)]


def check(ranks, axis: Axis, devices: tuple[int, ...], dtype: str, shapes) -> None:
    by_part = dict(ranks.run(cross_ranks, axis, devices, dtype, shapes))
    crossing = Crossing(Mesh((axis,), devices), dtype, shapes, [])
    crossing.check(list(zip(*(by_part[part] for part in range(axis.size)), strict=True)))


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_pair_of_layouts(ranks, dtype: str) -> None:
    check(ranks, *AXES["even"], dtype, SHAPES)


@pytest.mark.parametrize(*pairwise(axis=["turned", "shares"], dtype=["float32", "bfloat16", "bool"]))
def test_other_meshes(ranks, axis: str, dtype: str) -> None:
    check(ranks, *AXES[axis], dtype, SHAPES[:3])


@pytest.mark.parametrize("ranks", [4], indirect=True)
@pytest.mark.parametrize(("dtype", "devices"), [("float32", (0, 1, 2, 3)), ("bfloat16", (2, 0, 3, 1))])
def test_four_ranks(ranks, dtype: str, devices: tuple[int, ...]) -> None:
    check(ranks, Axis("d", 4), devices, dtype, SHAPES[:3])
