"""Recomputation changes nothing but what is kept: not a bit, as long as TensorFlow runs the ops as they are written."""

from __future__ import annotations

import pytest

from tests.transparency.recomputing import NETS, WAYS, as_written, compare


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("net", NETS)
def test_same_as_without(net: str, way: str) -> None:
    with as_written():
        found = compare(net, way)
    assert found.losses == 0
    assert found.weights == 0
    assert found.repeated > 10
