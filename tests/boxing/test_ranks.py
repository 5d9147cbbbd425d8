"""Boxing between real ranks: every pair of layouts moves the value right, on every part, call after call."""

import itertools

import pytest

from tests.boxing.crossing import DTYPES, Crossing, cross_ranks
from tests.products import either, pairwise
from whaleish import world
from whaleish.mesh import Axis, Mesh

pytestmark = pytest.mark.ranks
MESHES = {
    "even": Mesh((Axis("d", 2),)),
    "turned": Mesh((Axis("d", 2),), (1, 0)),
    "shares": Mesh((Axis("d", 2, (3, 1)),)),
}
SHAPES = [(12, 4), (7, 5), (1, 6), (0, 3), (6, 2, 2)]


def check(ranks, mesh: Mesh, dtype: str, shapes, every: int = 1) -> None:
    by_part = dict(itertools.chain(*ranks.run(cross_ranks, mesh, dtype, shapes, every, timeout=200)))
    crossing = Crossing(mesh, dtype, shapes, [], every=every)
    crossing.check(list(zip(*(by_part[part] for part in range(mesh.size)), strict=True)))


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_pair_of_layouts(ranks, dtype: str) -> None:
    check(ranks, MESHES["even"], dtype, SHAPES)


@pytest.mark.parametrize(*pairwise(mesh=["turned", "shares"], dtype=["float32", "bfloat16", "bool"]))
def test_other_meshes(ranks, mesh: str, dtype: str) -> None:
    check(ranks, MESHES[mesh], dtype, SHAPES[:3])


@pytest.mark.parametrize("ranks", [4], indirect=True)
@pytest.mark.parametrize(("dtype", "devices"), [("float32", (0, 1, 2, 3)), ("bfloat16", (2, 0, 3, 1))])
def test_four_ranks(ranks, dtype: str, devices: tuple[int, ...]) -> None:
    check(ranks, Mesh((Axis("d", 4),), devices), dtype, SHAPES[:3])


@pytest.mark.parametrize("ranks", [4], indirect=True)
@pytest.mark.parametrize(("shape", "every"), either([((5, 3), 5)], [((8, 4), 1), ((5, 3), 1)]))
def test_pairs_of_layouts_of_two_axes(ranks, shape: tuple[int, int], every: int) -> None:
    check(ranks, Mesh((Axis("x", 2), Axis("y", 2))), "float32", [shape], every)


@pytest.mark.parametrize("axes", [(Axis("x", 2), Axis("t", 3, time=True)), (Axis("t", 2, time=True), Axis("x", 2))])
def test_pairs_of_layouts_in_time(ranks, axes: tuple[Axis, ...]) -> None:
    check(ranks, Mesh(axes), "float32", [(7, 5)], 3)


def sets_twice() -> list[int]:
    """The sets of 2 x 2 ranks, also where Horovod has them from somebody else."""
    from whaleish import process_sets

    mesh = Mesh((Axis("x", 2), Axis("y", 2)))
    found = process_sets.process_sets(mesh, world.world())
    process_sets._made.clear()  # as if the program had made them
    assert process_sets.process_sets(mesh, world.world()) == found
    return list(found.along)


@pytest.mark.parametrize("ranks", [4], indirect=True)
def test_process_sets_that_exist_are_used(ranks) -> None:
    by_rank = ranks.run(sets_twice, timeout=60)
    assert by_rank[0][1] == by_rank[1][1] != by_rank[2][1] == by_rank[3][1]
    assert by_rank[0][0] == by_rank[2][0] != by_rank[1][0] == by_rank[3][0]
