"""One small training in many layouts, for tests of checkpoints: float64 and Adam, so that losses can be compared."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import whaleish as wh
from tests.transparency.zoo import nested
from whaleish import world

LAYOUTS: dict[str, tuple[int, ...]] = {
    "plain": (1, 2, 3, 4),
    "replica": (2, 3, 4),
    "split": (1, 2, 3, 4),
    "2x2": (4,),
    "stated": (2, 3, 4),
    "stages": (2, 4),
    "pipeline": (2, 4),
}
"""On how many devices each can be."""


@dataclass
class Training:
    """A model, its optimizer, and a step that is compiled for a layout."""

    model: keras.Model
    optimizer: Any
    step: Callable[..., tf.Tensor]

    @property
    def objects(self) -> dict[str, Any]:
        return {"model": self.model, "optimizer": self.optimizer}

    @property
    def variables(self) -> list[Any]:
        return [*self.model.variables, *self.optimizer.variables]

    def train(self, first: int, steps: int = 3) -> list[float]:
        return [float(self.step(*batch(number))) for number in range(first, first + steps)]

    def values(self) -> list[np.ndarray]:
        return [np.asarray(value) for value in wh.gather([variable.value for variable in self.variables])]


def batch(number: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(number)
    return rng.normal(size=(12, 10)), rng.integers(0, 7, 12)


def make(layout: str = "plain", *, seed: int = 0, build: bool = True, compiled: bool = True) -> Training:
    """The training in a layout; with other first values for another seed.

    Args:
      build: whether the optimizer has its slots before the first step.
      compiled: whether by whaleish; by TensorFlow alone otherwise.
    """
    keras.utils.set_random_seed(seed)
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((10,)),
            layers.Dense(14, "gelu", dtype="float64", name="one"),
            layers.LayerNormalization(dtype="float64", name="norm"),
            layers.Dense(9, "tanh", dtype="float64", name="two"),
            layers.Dense(7, dtype="float64", name="three"),
        ]
    )
    optimizer = keras.optimizers.Adam(0.02)
    if build:
        optimizer.build(model.trainable_variables)
    if layout == "stated":
        wh.layout(model.get_layer("one").kernel, "S(1)")
        wh.layout(model.get_layer("two").kernel, "S(0)")
        wh.layout(model.get_layer("three").bias, "S(0)")
    halves = model.layers[:2], model.layers[2:]
    around = {
        "replica": wh.replica,
        "stated": wh.replica,
        "split": wh.split,
        "2x2": lambda: nested(wh.replica(2), wh.split()),
        "pipeline": lambda: wh.pipeline(3),
    }.get(layout, contextlib.nullcontext)
    within = wh.stage if layout in ("stages", "pipeline") else contextlib.nullcontext

    def step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape, around():
            h = x
            with within():
                for layer in halves[0]:
                    h = layer(h)
            with within():
                for layer in halves[1]:
                    h = layer(h)
                losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=h)
                loss = tf.reduce_mean(losses)
        weights = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return loss

    return Training(model, optimizer, wh.function(step) if compiled else tf.function(step))


@contextlib.contextmanager
def devices(count: int) -> Iterator[None]:
    """The world of so many of the four virtual devices."""
    world._reset()
    wh.init(devices=count)
    try:
        yield
    finally:
        world._reset()
        wh.init(virtual_devices=4)


def in_parts(training: Training) -> int:
    """How many variables lie in parts."""
    return sum(variable.value.in_parts for variable in training.variables)
