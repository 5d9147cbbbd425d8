"""Random numbers are one logical tensor: the same on every layout and on every rank."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import whaleish as wh
from whaleish import world


def drawn() -> list[np.ndarray]:
    """Three calls of a step with a stateless, a stateful and an unseeded stateful draw."""
    generator = tf.random.Generator.from_seed(4)

    @wh.function
    def step(x):
        with wh.replica():
            stateless = tf.nn.experimental.stateless_dropout(x, 0.5, seed=[3, 4])
            stateful = tf.random.uniform(tf.shape(x), seed=5) * x
            return stateless, stateful, generator.normal(tf.shape(x)) * x, tf.nn.dropout(x, 0.5)

    x = tf.ones([10, 5])
    return [value.numpy() for _ in range(3) for value in step(x)]


@pytest.mark.ranks
def test_ranks_draw_the_same(ranks) -> None:
    def on_rank():
        import whaleish
        from tests.transparency.test_random import drawn

        whaleish.init()
        return drawn()

    first, second = ranks.run(on_rank)
    for ours, theirs in zip(first, second, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert 0.2 < np.mean(first[3] == 0) < 0.8
    assert (first[3] != first[7]).any(), "an unseeded draw differs from step to step"


@pytest.mark.parametrize("devices", [2, 3, 4])
def test_devices_draw_what_one_draws(devices: int) -> None:
    expected = tf.nn.experimental.stateless_dropout(tf.ones([10, 5]), 0.5, seed=[3, 4]).numpy()
    world._reset()
    wh.init(devices=devices)
    try:
        np.testing.assert_array_equal(drawn()[0], expected)
    finally:
        world._reset()
        wh.init(virtual_devices=4)
