"""Weights, slots and stages over four ranks, in one checkpoint that goes on anywhere."""

from __future__ import annotations

import contextlib
import glob

import numpy as np
import pytest
import tensorflow as tf

import whaleish as wh
from tests.checkpoint.training import devices
from tests.transparency.precision import computing_in
from tests.transparency.sharded import CLASSES, LENGTH, SCOPES, STAGED, TOKENS, Net


def batch(number: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(number)
    return rng.integers(0, TOKENS, (12, LENGTH)).astype("int32"), rng.integers(0, CLASSES, 12)


def losses(step, first: int, steps: int = 3) -> list[float]:
    return [float(step(*batch(number))) for number in range(first, first + steps)]


def go(scopes: str, zero: int, folder: str, restored: str | None = None):
    """A path, if it began anew and was saved after two steps, and the three losses that follow."""
    with computing_in("float64"):
        with wh.deferred() if restored is None else contextlib.nullcontext():
            net = Net("adamw")
        step = wh.function(net.step(lambda: SCOPES[scopes](zero), scopes in STAGED))
        path = ""
        if restored is None:
            losses(step, 0, 2)
            path = wh.checkpoint.save(folder, net.objects).path
        else:
            wh.checkpoint.restore(restored, net.objects)
        return path, losses(step, 2), losses(step, 5) if restored is None else []


def on_ranks(*arguments):
    wh.init()
    return go(*arguments)


@pytest.mark.ranks
def test_from_four_ranks_with_zero_and_stages_to_anywhere(pools, tmp_path) -> None:
    saved = pools(4).run(on_ranks, "pipeline(3)", 3, str(tmp_path), timeout=200)
    (path, expected, _), *_ = saved
    assert all(found == (path, expected, saved[0][2]) for found in saved)
    assert len(glob.glob(f"{path}.data-*")) == 4, "not every rank wrote a file"
    for size, scopes, zero in ((2, "split", 0), (3, "replica", 3)):
        for _, found, _ in pools(size).run(on_ranks, scopes, zero, "", path, timeout=200):
            np.testing.assert_allclose(found, expected, rtol=1e-9)
    with devices(1):
        _, found, _ = go("replica", 0, "", path)
        np.testing.assert_allclose(found, expected, rtol=1e-9)
    with computing_in("float64"):
        net = Net("adamw")
        tf.train.Checkpoint(**net.objects).restore(path).assert_existing_objects_matched()
        plain = tf.function(net.step(contextlib.nullcontext, False))
        np.testing.assert_allclose(losses(plain, 2), expected, rtol=1e-9)
