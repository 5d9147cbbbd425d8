"""Models for transparency tests: each a backbone and a head, made from one seed, that know nothing of devices."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import whaleish as wh


@dataclass
class Net:
    """Two callables and their variables; `draw(rng, batch)` makes a batch of inputs and labels."""

    backbone: Any
    head: Any
    draw: Callable[[np.random.Generator, int], tuple[np.ndarray, np.ndarray]]

    @property
    def variables(self) -> list[Any]:
        return [*self.backbone.trainable_variables, *self.head.trainable_variables]

    @property
    def all_variables(self) -> list[Any]:
        return [*self.backbone.variables, *self.head.variables]


def _vectors(width: int, classes: int) -> Callable[[np.random.Generator, int], tuple[np.ndarray, np.ndarray]]:
    return lambda rng, batch: (rng.normal(size=(batch, width)), rng.integers(0, classes, batch))


def _images(size: int, classes: int) -> Callable[[np.random.Generator, int], tuple[np.ndarray, np.ndarray]]:
    return lambda rng, batch: (rng.normal(size=(batch, size, size, 3)), rng.integers(0, classes, batch))


def mlp() -> Net:
    layers = keras.layers
    backbone = keras.Sequential([keras.Input((16,)), layers.Dense(32, activation="gelu")])
    head = keras.Sequential([keras.Input((32,)), layers.Dense(24, activation="relu"), layers.Dense(12)])
    return Net(backbone, head, _vectors(16, 12))


def cnn() -> Net:
    layers = keras.layers
    backbone = keras.Sequential(
        [
            keras.Input((8, 8, 3)),
            layers.Conv2D(8, 3, padding="same", use_bias=False),
            layers.BatchNormalization(),
            layers.Activation("relu"),
            layers.DepthwiseConv2D(3, padding="same"),
            layers.MaxPooling2D(),
            layers.Conv2D(12, 3, strides=2, padding="same"),
            layers.BatchNormalization(),
            layers.Activation("swish"),
            layers.Flatten(),
        ]
    )
    head = keras.Sequential([keras.Input((48,)), layers.Dense(12)])
    return Net(backbone, head, _images(8, 12))


def transformer() -> Net:
    layers = keras.layers
    tokens = keras.Input((6,), dtype="int32")
    x = layers.Embedding(20, 16)(tokens)
    y = layers.LayerNormalization()(x)
    y = layers.MultiHeadAttention(4, 4, dropout=0.1, seed=3)(y, y, use_causal_mask=True)
    x = layers.Dropout(0.1, seed=5)(x + y)
    y = layers.Dense(32, activation="gelu")(layers.LayerNormalization()(x))
    x = x + layers.Dropout(0.1, seed=7)(layers.Dense(16)(y))
    backbone = keras.Model(tokens, layers.GlobalAveragePooling1D()(x))
    head = keras.Sequential([keras.Input((16,)), layers.Dense(12)])
    return Net(backbone, head, lambda rng, n: (rng.integers(0, 20, (n, 6)).astype("int32"), rng.integers(0, 12, n)))


def classifier() -> Net:
    backbone = keras.Sequential([keras.Input((24,)), keras.layers.Dense(32, activation="tanh")])
    head = keras.Sequential([keras.Input((32,)), keras.layers.Dense(1000)])
    return Net(backbone, head, _vectors(24, 1000))


def resnet50() -> Net:
    backbone = keras.applications.ResNet50(weights=None, include_top=False, pooling="avg", input_shape=(32, 32, 3))
    head = keras.Sequential([keras.Input((2048,)), keras.layers.Dense(12)])
    return Net(backbone, head, _images(32, 12))


MODELS = {build.__name__: build for build in (mlp, cnn, transformer, classifier, resnet50)}
OPTIMIZERS: dict[str, Callable[..., Any]] = {
    "sgd": lambda rate=0.05, **options: keras.optimizers.SGD(rate, momentum=0.9, **options),
    "adamw": lambda rate=0.002, **options: keras.optimizers.AdamW(rate, weight_decay=0.01, **options),
}


@contextlib.contextmanager
def nested(*scopes: Any) -> Iterator[None]:
    """Scopes one inside the other, the first outermost."""
    with contextlib.ExitStack() as stack:
        for scope in scopes:
            stack.enter_context(scope)
        yield


def data_and_model(outer: int = 2) -> Any:
    """Data parallel over `outer` groups of devices, each of which shards the weights."""
    return nested(wh.replica(outer), wh.split())


SCOPES: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "none": (contextlib.nullcontext, contextlib.nullcontext),
    "replica": (wh.replica, wh.replica),
    "split": (wh.split, wh.split),
    "replica-then-split": (wh.replica, wh.split),
    "replica x split": (data_and_model, data_and_model),
    "replica x split, then split": (data_and_model, wh.split),
    "replica, then replica x split": (lambda: wh.replica(2), lambda: nested(wh.replica(2), wh.split())),
    "split x replica": (lambda: nested(wh.split(2), wh.replica()), lambda: nested(wh.split(2), wh.replica())),
    "replica(1) x split": (lambda: nested(wh.replica(1), wh.split()), lambda: nested(wh.replica(1), wh.split())),
    "split x split": (lambda: nested(wh.split(2), wh.split(2)), lambda: nested(wh.split(2), wh.split(2))),
    **{f"accumulate({n})": (lambda n=n: wh.accumulate(n), lambda n=n: wh.accumulate(n)) for n in (1, 2, 3, 4, 7, 8)},
    "accumulate(3) x split": (lambda: wh.accumulate(3), lambda: nested(wh.replica(1), wh.accumulate(3), wh.split())),
    "replica x accumulate(3) x split": (
        lambda: nested(wh.replica(2), wh.accumulate(3)),
        lambda: nested(wh.replica(2), wh.accumulate(3), wh.split()),
    ),
}


# ResNet-50 on a few images of noise makes rounding a thousand times larger with each step at the usual rates: plain
# TensorFlow on a batch in another order then differs as much.
RATES = {"resnet50": 1e-7}


def make(model: str, optimizer: str, clip: bool, scopes: str) -> tuple[Net, Callable[..., tf.Tensor]]:
    """A net from a fixed seed and its train step under some scopes."""
    keras.utils.set_random_seed(13)
    net = MODELS[model]()
    options = ({"global_clipnorm": 0.5} if clip else {}) | ({"rate": RATES[model]} if model in RATES else {})
    rule = OPTIMIZERS[optimizer](**options)
    rule.build(net.variables)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    around_backbone, around_head = SCOPES[scopes]

    def step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            with around_backbone():
                features = net.backbone(x, training=True)
            with around_head():
                loss = loss_of(y, net.head(features, training=True))
        gradients = tape.gradient(loss, net.variables)
        rule.apply_gradients(zip(gradients, net.variables, strict=True))
        return loss

    return net, step
