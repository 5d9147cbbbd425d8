"""Small Keras models of every kind, compiled, each with data for `fit`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers

ROWS = 22

Data = dict[str, Any]
Made = tuple[keras.Model, Data]
REGISTRY: dict[str, Callable[[], Made]] = {}


def register(build: Callable[[], Made]) -> Callable[[], Made]:
    REGISTRY[build.__name__] = build
    return build


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(ROWS, *shape)).astype("float32")


def classes(count: int, *shape: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, count, (ROWS, *shape))


def logits_loss() -> keras.Loss:
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def sgd(**options: Any) -> keras.Optimizer:
    return keras.optimizers.SGD(0.05, momentum=0.9, **options)


@register
def mlp() -> Made:
    model = keras.Sequential(
        [keras.Input((8,)), layers.Dense(16, "relu"), layers.Dropout(0.2, seed=1), layers.Dense(3)]
    )
    model.compile(sgd(), logits_loss(), metrics=["accuracy"])
    return model, {"x": numbers(8), "y": classes(3)}


@register
def unbuilt() -> Made:
    model = keras.Sequential([layers.Dense(16, "relu", kernel_regularizer="l2"), layers.Dense(3)])
    model.compile(sgd(clipnorm=0.5), logits_loss(), weighted_metrics=["accuracy"])
    return model, {"x": numbers(8), "y": classes(3), "class_weight": {0: 1.0, 1: 0.2, 2: 3.0}}


@register
def cnn() -> Made:
    model = keras.Sequential(
        [
            keras.Input((8, 8, 2)),
            layers.Conv2D(8, 3, use_bias=False),
            layers.BatchNormalization(),
            layers.Activation("relu"),
            layers.SeparableConv2D(8, 3),
            layers.GlobalAveragePooling2D(),
            layers.Dense(3),
        ]
    )
    model.compile(sgd(global_clipnorm=1.0), logits_loss(), metrics=["accuracy", "sparse_top_k_categorical_accuracy"])
    return model, {"x": numbers(8, 8, 2), "y": classes(3)}


@register
def tagger() -> Made:
    model = keras.Sequential([keras.Input((6,)), layers.Embedding(20, 8, mask_zero=True)])
    model.add(layers.Bidirectional(layers.LSTM(5, return_sequences=True)))
    model.add(layers.Dense(4))
    model.compile(sgd(), logits_loss(), weighted_metrics=["accuracy"])
    return model, {"x": classes(20, 6), "y": classes(4, 6, seed=2)}


@register
def several_ends() -> Made:
    left, right = keras.Input((5,), name="left"), keras.Input((4,), name="right")
    joined = layers.Dense(8, "tanh")(layers.Concatenate()([layers.Dense(6)(left), layers.Dense(6)(right)]))
    ends = {"number": layers.Dense(1, name="number")(joined), "kind": layers.Dense(3, name="kind")(joined)}
    model = keras.Model({"left": left, "right": right}, ends)
    model.compile(
        sgd(),
        {"number": "mse", "kind": logits_loss()},
        loss_weights={"number": 0.3, "kind": 1.0},
        metrics={"number": ["mae"], "kind": ["accuracy"]},
    )
    y = {"number": numbers(1, seed=3), "kind": classes(3)}
    return model, {"x": {"left": numbers(5), "right": numbers(4, seed=2)}, "y": y}


@register
def siamese() -> Made:
    tower = keras.Sequential([layers.Dense(8, "relu"), layers.Dense(4)])
    one, other = keras.Input((6,)), keras.Input((6,))
    distance = layers.Lambda(lambda pair: keras.ops.sum((pair[0] - pair[1]) ** 2, -1, keepdims=True))
    model = keras.Model([one, other], distance([tower(one), tower(other)]))
    model.compile(sgd(), "mse")
    x = [numbers(6), numbers(6, seed=5)]
    return model, {"x": x, "y": numbers(1, seed=3), "sample_weight": np.abs(numbers(seed=4))}


class Vae(keras.Model):
    """With `add_loss`, and random numbers in `call`."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = layers.Dense(6), layers.Dense(8)
        self.seeds = keras.random.SeedGenerator(3)

    def call(self, x: Any) -> Any:
        mean, log_variance = keras.ops.split(self.encoder(x), 2, axis=-1)
        noise = keras.random.normal(keras.ops.shape(mean), seed=self.seeds)
        self.add_loss(-0.05 * keras.ops.mean(1 + log_variance - mean**2 - keras.ops.exp(log_variance)))
        return self.decoder(mean + noise * keras.ops.exp(0.5 * log_variance))


@register
def vae() -> Made:
    model = Vae()
    model.compile(sgd(), "mse")
    return model, {"x": numbers(8), "y": numbers(8)}


class OwnStep(keras.Model):
    """With a `train_step` of its own, which updates by hand, and metrics of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.seen = layers.Dense(3), keras.metrics.Mean("seen")

    def call(self, x: Any) -> Any:
        return self.layer(x)

    @property
    def metrics(self) -> list[Any]:
        return [self.seen]

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape() as tape:
            loss = keras.ops.mean(keras.losses.sparse_categorical_crossentropy(y, self(x), from_logits=True))
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        self.seen.update_state(loss)
        return {"seen": self.seen.result(), "last": loss}


@register
def own_step() -> Made:
    model = OwnStep()
    model.compile(sgd(), logits_loss())
    return model, {"x": numbers(8), "y": classes(3)}


class OwnLoss(keras.Model):
    """With a `compute_loss` of its own."""

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True) -> Any:
        return keras.ops.mean((y - y_pred) ** 2) + 0.01 * keras.ops.sum(keras.ops.abs(self.trainable_variables[0]))


@register
def own_loss() -> Made:
    x = keras.Input((5,))
    model = OwnLoss(x, layers.Dense(2)(layers.Dense(7, "gelu")(x)))
    model.compile(keras.optimizers.Adam(0.01), metrics=["mae"])
    return model, {"x": numbers(5), "y": numbers(2, seed=3)}


@register
def accumulating() -> Made:
    model = keras.Sequential([keras.Input((8,)), layers.Dense(16, "relu"), layers.Dense(3)])
    rule = keras.optimizers.AdamW(0.01, gradient_accumulation_steps=2, use_ema=True, ema_momentum=0.9)
    model.compile(rule, logits_loss(), metrics=["accuracy"])
    return model, {"x": numbers(8), "y": classes(3)}


@register
def half() -> Made:
    mixed: Any = {"dtype": "mixed_float16"}
    model = keras.Sequential([keras.Input((8,)), layers.Dense(16, "relu", **mixed), layers.Dense(3, **mixed)])
    model.add(layers.Activation("linear", dtype="float32"))
    model.compile(keras.optimizers.LossScaleOptimizer(sgd(), 64.0), logits_loss())
    return model, {"x": numbers(8), "y": classes(3)}
