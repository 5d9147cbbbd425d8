"""Boxing between devices of one process: every pair of layouts moves the value right, on every part."""

import itertools

import pytest

from tests.boxing.crossing import DTYPES, cross_locally
from tests.products import either
from whaleish.mesh import Axis

AXES = [Axis("d", 2), Axis("d", 3), Axis("d", 4), Axis("d", 3, (3, 0, 1))]
FEW = [(axis, "float32") for axis in AXES] + [(AXES[n % 3], dtype) for n, dtype in enumerate(DTYPES) if n]


@pytest.mark.parametrize(("axis", "dtype"), either(FEW, itertools.product(AXES, DTYPES)), ids=str)
def test_every_pair_of_layouts(axis: Axis, dtype: str) -> None:
    assert cross_locally(axis, dtype) > 60
