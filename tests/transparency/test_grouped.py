"""Grouped convolutions, for which CPUs lack kernels: forward and gradients equal Keras's, which XLA compiles."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import keras
import numpy as np
import pytest
import tensorflow as tf

import whaleish as wh
from tests.transparency.precision import computing_in

layers = keras.layers
LAYERS: dict[str, tuple[Callable[[], keras.layers.Layer], tuple[int, ...]]] = {
    "sequence": (lambda: layers.Conv1D(8, 3, strides=2, groups=2), (9, 4)),
    "image": (lambda: layers.Conv2D(8, 3, padding="same", groups=4), (8, 8, 4)),
    "volume": (lambda: layers.Conv3D(6, 2, groups=2), (4, 4, 4, 4)),
}


@pytest.mark.parametrize("world_of", [2], indirect=True)
@pytest.mark.parametrize("around", [contextlib.nullcontext, wh.replica, wh.split])
@pytest.mark.parametrize("kind", LAYERS)
def test_gradients(world_of: int, kind: str, around: Callable) -> None:
    build, shape = LAYERS[kind]

    def step_of(scope: Callable) -> Callable[[tf.Tensor], list[tf.Tensor]]:
        keras.utils.set_random_seed(1)
        layer = build()
        layer.build((None, *shape))

        def step(x: tf.Tensor) -> list[tf.Tensor]:
            with tf.GradientTape() as tape:
                tape.watch(x)
                with scope():
                    loss = tf.reduce_sum(tf.sin(layer(x)))
            return [loss, *tape.gradient(loss, [x, *layer.trainable_variables])]

        return step

    with computing_in("float64"):
        alone, compiled = tf.function(step_of(contextlib.nullcontext)), wh.function(step_of(around))
        for batch in (8, 5, 1):
            x = tf.constant(np.random.default_rng(0).normal(size=(batch, *shape)))
            for ours, theirs in zip(compiled(x), alone(x), strict=True):
                np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-9)
