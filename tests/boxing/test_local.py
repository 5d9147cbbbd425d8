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
MESHES = [Mesh(TWO), Mesh((TWO[0], Axis("y", 2, (3, 1)))), Mesh((Axis("x", 1), Axis("y", 3))), Mesh(TWO, (2, 0, 3, 1))]


@pytest.mark.parametrize(("mesh", "dtype"), [*[(mesh, "float32") for mesh in MESHES], (MESHES[0], "int64")], ids=str)
def test_every_pair_of_layouts_of_two_axes(mesh: Mesh, dtype: str) -> None:
    """All 256 pairs of S(0), S(1), B, P on each axis (and those with extremes), even and uneven."""
    assert sum(cross_locally(mesh, dtype, [shape]) for shape in [(8, 4), (7, 5), (1, 3)]) > 3 * 240
