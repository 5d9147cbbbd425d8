"""Boxing between devices of one process: every pair of layouts moves the value right, on every part."""

import itertools

import pytest

from tests.boxing.crossing import DTYPES, cross_locally
from tests.products import either
from whaleish.mesh import Axis, Mesh

AXES = [Axis("d", 2), Axis("d", 3), Axis("d", 4), Axis("d", 3, (3, 0, 1))]
FEW = [(axis, "float32") for axis in AXES] + [(AXES[n % 3], dtype) for n, dtype in enumerate(DTYPES) if n]


@pytest.mark.parametrize(("axis", "dtype"), either(FEW, itertools.product(AXES, DTYPES)), ids=str)
def test_every_pair_of_layouts(axis: Axis, dtype: str) -> None:
    assert cross_locally(Mesh((axis,)), dtype) > 60


TWO = Axis("x", 2), Axis("y", 2)
MESHES = [
    Mesh(TWO),
    Mesh((TWO[0], Axis("y", 2, (3, 1)))),
    Mesh((Axis("x", 1), Axis("y", 3))),
    Mesh(TWO, (2, 0, 3, 1)),
    Mesh((TWO[0], Axis("t", 3, time=True))),
    Mesh((Axis("t", 2, time=True), TWO[1])),
]


@pytest.mark.parametrize("shape", either([(7, 5)], [(8, 4), (7, 5), (1, 3)]))
def test_every_pair_of_layouts_of_two_axes(shape: tuple[int, int]) -> None:
    """All 256 pairs of S(0), S(1), B, P on each axis (and those with extremes), even and uneven."""
    assert cross_locally(MESHES[0], "float32", [shape]) > 240


@pytest.mark.parametrize("every", either([5], [1]))
@pytest.mark.parametrize("mesh", MESHES[1:], ids=lambda mesh: mesh.text())
@pytest.mark.parametrize("dtype", ["int64", "float32"])
def test_other_meshes_of_two_axes(mesh: Mesh, dtype: str, every: int) -> None:
    assert cross_locally(mesh, dtype, [(7, 5)], every) > 240 / every
