"""A transformer encoder that normalises last, as layers which know nothing of devices, and a step of SGD.

x [16, 64, 768] ── 12 layers: attention of 12 heads, then 3,072 hidden units, each added and normalised ── mean square
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import tensorflow as tf

RATE = 0.05


@dataclass(frozen=True)
class Size:
    """How large an encoder and its batch are."""

    layers: int
    width: int
    heads: int
    hidden: int
    length: int
    batch: int


BERT_BASE = Size(layers=12, width=768, heads=12, hidden=3072, length=64, batch=16)
"""The layers of BERT-base (Devlin et al., 2018), of 85 million weights."""

SMALL = Size(layers=4, width=32, heads=4, hidden=64, length=8, batch=16)


def initial(size: Size, number: int) -> dict[str, np.ndarray]:
    """The weights with which a layer begins."""
    width, hidden = size.width, size.hidden
    rng = np.random.default_rng(number)
    found: dict[str, np.ndarray] = {}
    for name, shape in {
        "queries": (width, width),
        "keys": (width, width),
        "values": (width, width),
        "mixed": (width, width),
        "up": (width, hidden),
        "down": (hidden, width),
    }.items():
        found[name] = rng.normal(size=shape, scale=0.02).astype("float32")
        found[f"{name}_bias"] = np.zeros(shape[1], "float32")
    for name in ("attended", "out"):
        found[f"{name}_scale"] = np.ones(width, "float32")
        found[f"{name}_shift"] = np.zeros(width, "float32")
    return found


@dataclass
class Layer:
    """One layer; `number` also seeds its weights, which are the same wherever they are made."""

    size: Size
    number: int
    weights: dict[str, tf.Variable] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, value in initial(self.size, self.number).items():
            self.weights[name] = tf.Variable(value, name=f"layer_{self.number}_{name}")

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        x = self._norm("attended", x + self._attention(x))
        return self._norm("out", x + self._dense("down", tf.nn.gelu(self._dense("up", x), approximate=True)))

    def _attention(self, x: tf.Tensor) -> tf.Tensor:
        size = self.size
        queries, keys, values = (
            tf.transpose(
                tf.reshape(self._dense(name, x), (-1, size.length, size.heads, size.width // size.heads)), order
            )
            for name, order in (("queries", (0, 2, 1, 3)), ("keys", (0, 2, 3, 1)), ("values", (0, 2, 1, 3)))
        )
        shares = tf.nn.softmax(tf.matmul(queries, keys) * (size.width // size.heads) ** -0.5)
        mixed = tf.transpose(tf.matmul(shares, values), (0, 2, 1, 3))
        return self._dense("mixed", tf.reshape(mixed, (-1, size.length, size.width)))

    def _dense(self, name: str, x: tf.Tensor) -> tf.Tensor:
        # As Keras's Dense does it: the gradient of a product of a matrix and a batch of them is several times slower.
        rows = tf.matmul(tf.reshape(x, (-1, x.shape[-1])), self.weights[name]) + self.weights[f"{name}_bias"]
        return tf.reshape(rows, (-1, self.size.length, rows.shape[-1]))

    def _norm(self, name: str, x: tf.Tensor) -> tf.Tensor:
        centred = x - tf.reduce_mean(x, -1, keepdims=True)
        variance = tf.reduce_mean(centred * centred, -1, keepdims=True)
        return centred * tf.math.rsqrt(variance + 1e-12) * self.weights[f"{name}_scale"] + self.weights[f"{name}_shift"]


def make(size: Size) -> list[Layer]:
    """The layers, from the first to the last."""
    return [Layer(size, number) for number in range(size.layers)]


def weights_of(layers: Sequence[Layer]) -> list[tf.Variable]:
    return [weight for layer in layers for weight in layer.weights.values()]


def data(size: Size) -> tuple[tf.Tensor, tf.Tensor]:
    """The whole batch, the same wherever it is made."""
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(2, size.batch, size.length, size.width)).astype("float32")
    return tf.constant(x), tf.constant(y)


def rows_of(size: Size, rank: int, ranks: int) -> tuple[tf.Tensor, tf.Tensor]:
    """A rank's part of the batch."""
    rows = size.batch // ranks
    x, y = (tensor[rank * rows :][:rows] for tensor in data(size))
    return x, y


def through(layers: Sequence[Layer], x: tf.Tensor) -> tf.Tensor:
    for layer in layers:
        x = layer(x)
    return x


def loss_of(found: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    return tf.reduce_mean((found - y) * (found - y))


def update(weights: Sequence[tf.Variable], gradients: Sequence[tf.Tensor]) -> None:
    """A step of SGD."""
    for weight, gradient in zip(weights, gradients, strict=True):
        weight.assign_sub(RATE * gradient)
