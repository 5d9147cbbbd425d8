"""Measured memory: what a process had resident at the most, and from when on."""

import numpy as np

import whaleish as wh

SIZE = 200_000_000


def test_the_most_that_was_resident() -> None:
    wh.peak_memory(reset=True)
    before = wh.peak_memory()
    assert list(before) == ["process"]
    held = np.ones(SIZE, "uint8")
    assert held[-1] == 1
    del held
    grown = wh.peak_memory(reset=True)["process"] - before["process"]
    assert 0.9 * SIZE < grown < 1.3 * SIZE, "also of what has gone since"
    assert wh.peak_memory()["process"] < before["process"] + 0.5 * SIZE, "it began anew"
