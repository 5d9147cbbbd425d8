"""D4 (keras#20611, tensorflow#82281): the same seed draws the same numbers on every layout and number of devices."""

from __future__ import annotations

import contextlib
import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

import whaleish as wh
from whaleish import world

layers = keras.layers
SCOPES = {"replica": wh.replica, "split": wh.split, "none": contextlib.nullcontext}


def random_step(scope):
    """Everything random that Keras has in a training step: masks, noise, augmentation, and TensorFlow's own."""
    keras.utils.set_random_seed(11)
    dropout, noise = layers.Dropout(0.4, seed=1), layers.GaussianNoise(0.5, seed=2)
    spatial, alpha = layers.SpatialDropout2D(0.3, seed=3), layers.GaussianDropout(0.3, seed=4)
    flip, crop = layers.RandomFlip("horizontal", seed=5), layers.RandomCrop(4, 4, seed=6)
    brightness = layers.RandomBrightness(0.2, value_range=(0, 1), seed=7)

    def step(images):
        with scope():
            rows = tf.reshape(images, [images.shape[0], -1])
            found = [layer(rows, training=True) for layer in (dropout, noise, alpha)]
            found.append(spatial(images, training=True))
            found += [layer(images, training=True) for layer in (flip, crop, brightness)]
            found.append(tf.random.stateless_uniform(images.shape, [3, 4]))
            found.append(tf.random.stateless_normal(images.shape[:2], [3, 4], dtype=tf.float64))
            found.append(tf.random.stateless_truncated_normal([7, 5], [3, 4]))
        return found

    return step


def images(rows: int) -> tf.Tensor:
    return tf.constant(np.random.default_rng(0).uniform(size=(rows, 6, 6, 3)).astype("float32"))


@functools.cache
def alone(rows: int) -> list[list[np.ndarray]]:
    """Two steps in plain TensorFlow."""
    step = tf.function(random_step(wh.auto))
    return [[value.numpy() for value in step(images(rows))] for _ in range(2)]


def check(scope: str, rows: int) -> None:
    step = wh.function(random_step(SCOPES[scope]))
    for expected in alone(rows):
        for number, (got, wanted) in enumerate(zip(step(images(rows)), expected, strict=True)):
            np.testing.assert_allclose(got, wanted, 1e-6, 1e-6, err_msg=f"number {number}")
            # Masks are bit-identical: the same elements are dropped.
            np.testing.assert_array_equal(np.asarray(got) == 0, wanted == 0, err_msg=f"number {number}")


@pytest.mark.parametrize(
    ("world_of", "scope", "rows"),
    [(2, "replica", 8), (3, "replica", 7), (4, "replica", 6), (4, "split", 8), (2, "none", 5), (1, "replica", 8)],
    indirect=["world_of"],
)
def test_in_one_process(world_of: int, scope: str, rows: int) -> None:
    check(scope, rows)


def test_on_real_ranks(ranks) -> None:
    ranks.run(on_rank, timeout=60)


def on_rank() -> None:
    from tests.cases.test_randomness import check

    wh.init()
    for scope, rows in (("replica", 7), ("split", 8)):
        check(scope, rows)


def test_a_replicated_activation_under_split_has_one_mask() -> None:
    world._reset()
    wh.init(virtual_devices=4)
    keras.utils.set_random_seed(1)
    dense, dropout = layers.Dense(8), layers.Dropout(0.5, seed=3)
    dense.build((None, 8))
    x = tf.ones([6, 8])

    def step(x):
        with wh.split():
            return dropout(dense(x), training=True), dropout.seed_generator.state.value + 0

    mask, _ = wh.function(step)(x)
    keep = layers.Dropout(0.5, seed=3)
    np.testing.assert_array_equal(np.asarray(mask) == 0, np.asarray(keep(dense(x), training=True)) == 0)
