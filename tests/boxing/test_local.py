"""Boxing between devices of one process: every pair of layouts moves the value right, on every part."""

import pytest

from tests.boxing.crossing import DTYPES, cross_locally
from whaleish.mesh import Axis


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("axis", [Axis("d", 2), Axis("d", 3), Axis("d", 4), Axis("d", 3, (3, 0, 1))], ids=Axis.__repr__)
def test_every_pair_of_layouts(axis: Axis, dtype: str) -> None:
    assert cross_locally(axis, dtype) > 60
