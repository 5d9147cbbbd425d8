"""ResNet-50 at 32 px as the benchmarks have it: the model, its batch, its loss and its optimizer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from tools.bench.promise import sending

BATCH, SIDE, CLASSES = 32, 32, 10
RATE = 1e-7  # so small that rounding does not grow from step to step, and equal steps give equal losses


@dataclass
class Net:
    """A model from a fixed seed, and what it is trained with."""

    model: keras.Model
    optimizer: keras.optimizers.Optimizer
    loss_of: Callable[..., tf.Tensor]

    @property
    def weights(self) -> list[Any]:
        return list(self.model.trainable_variables)

    def loss(self, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        return self.loss_of(y, self.model(x, training=True))

    def update(self, gradients: list[tf.Tensor]) -> None:
        self.optimizer.apply_gradients(zip(gradients, self.weights, strict=True))


def make_net(optimizer: str = "sgd", **loss_options: Any) -> Net:
    keras.utils.set_random_seed(7)
    model = keras.applications.ResNet50(weights=None, input_shape=(SIDE, SIDE, 3), classes=CLASSES)
    rule = keras.optimizers.AdamW(RATE) if optimizer == "adamw" else keras.optimizers.SGD(RATE, momentum=0.9)
    rule.build(model.trainable_variables)
    return Net(model, rule, keras.losses.SparseCategoricalCrossentropy(**loss_options))


def data() -> tuple[tf.Tensor, tf.Tensor]:
    """The whole batch, the same everywhere."""
    generator = tf.random.Generator.from_seed(3)
    labels = generator.uniform((BATCH,), maxval=CLASSES, dtype=tf.int64)
    return generator.normal((BATCH, SIDE, SIDE, 3)), labels


def whaleish_step(net: Net) -> tuple[Any, str]:
    """The step under whaleish, with statistics of each device's own part; and a note that says how much it boxes."""
    import whaleish as wh

    @wh.function
    def step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape, wh.replica(), wh.local_statistics():
            loss = net.loss(x, y)
        net.update(tape.gradient(loss, net.weights))
        return loss

    return step, f"{len(sending(step, *data()))} boxings that send, for {len(net.weights)} weights"
