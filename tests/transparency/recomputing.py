"""Steps whose layers are in a scope, for transparency tests: with and without `wh.recompute()`, or another one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import whaleish as wh
from tests.transparency.pipes import Net
from whaleish.rules.host import TO_HOST

STEPS = 3
WIDTH, LENGTH, CLASSES, BATCH = 64, 6, 5, 12

Scope = Callable[[], Any]


@dataclass(frozen=True)
class Way:
    """The scopes of a step besides those of recomputation.

    Attributes:
      outer: round the model. inner: round each half of its blocks.
    """

    outer: Scope = contextlib.nullcontext
    inner: Scope = contextlib.nullcontext


def _both(*scopes: Scope) -> Scope:
    @contextlib.contextmanager
    def entered() -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for scope in scopes:
                stack.enter_context(scope())
            yield

    return entered


WAYS = {
    "plain": Way(),
    "replica": Way(wh.replica),
    "local": Way(_both(wh.replica, wh.local_statistics)),
    "split": Way(wh.split),
    "2x2": Way(_both(lambda: wh.replica(2), wh.split)),
    "accumulate": Way(_both(lambda: wh.accumulate(3), wh.local_statistics)),
    "stages": Way(inner=wh.stage),
    "pipeline": Way(_both(lambda: wh.pipeline(4), wh.local_statistics), wh.stage),
    "zb-h1": Way(_both(lambda: wh.pipeline(4, "zb-h1"), wh.local_statistics), wh.stage),
    "pipeline, recompute": Way(_both(lambda: wh.pipeline(3, recompute=True), wh.local_statistics), wh.stage),
}


def _loss(y: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    return tf.reduce_mean(keras.losses.sparse_categorical_crossentropy(y, logits, from_logits=True))


def _dense(number: int, normal: Any) -> Any:
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((LENGTH, WIDTH)),
            layers.Dense(2 * WIDTH, activation="gelu"),
            normal(),
            layers.Dropout(0.2, seed=number),
            layers.Dense(WIDTH, activation="tanh"),
        ],
        name=f"block_{number}",
    )


def _head() -> Any:
    head = keras.Sequential([keras.Input((LENGTH, WIDTH)), keras.layers.Flatten(), keras.layers.Dense(CLASSES)])
    return head


def batch_norm(way: Way, segment: Scope) -> Net:
    """Blocks with batch norm and dropout, one after another, each a segment."""
    return _blocks(way, segment, keras.layers.BatchNormalization)


def layer_norm(way: Way, segment: Scope) -> Net:
    return _blocks(way, segment, keras.layers.LayerNormalization)


def _blocks(way: Way, segment: Scope, normal: Any) -> Net:
    blocks, head = [_dense(n, normal) for n in range(4)], _head()

    def loss(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        h = x
        with way.outer():
            for pair in (blocks[:2], blocks[2:]):
                with way.inner():
                    for block in pair:
                        with segment():
                            h = h + block(h, training=True)
                    logits = head(h) if pair[0] is blocks[2] else None
        return _loss(y, logits)

    return Net([*blocks, head], loss)


class Attention(keras.layers.Layer):
    """Attention with a mask and a scope in its `call`."""

    def __init__(self, segment: Scope, number: int) -> None:
        super().__init__()
        layers, self.segment = keras.layers, segment
        self.attend = layers.MultiHeadAttention(2, WIDTH // 2, dropout=0.1, seed=number)
        self.first, self.second = layers.LayerNormalization(), layers.LayerNormalization()
        self.up, self.down = layers.Dense(3 * WIDTH, activation="gelu"), layers.Dense(WIDTH)

    def call(self, x: tf.Tensor, allowed: tf.Tensor, training: bool = True) -> tf.Tensor:
        with self.segment():
            h = self.first(x)
            x = x + self.attend(h, h, attention_mask=allowed[:, None, :], training=training)
            return x + self.down(self.up(self.second(x)))


def attention(way: Way, segment: Scope) -> Net:
    """Masked attention with scopes in the calls of layers; the loss is in a segment too."""
    blocks, head = [Attention(segment, n) for n in range(2)], _head()
    for block in blocks:
        block(tf.zeros((1, LENGTH, WIDTH)), tf.ones((1, LENGTH), bool))

    def loss(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        h, mask = x, x[:, :, 0] > -1.0
        with way.outer():
            for block in blocks:
                with way.inner():
                    h = block(h, mask)
                    logits = head(h)
            with segment():
                found = keras.losses.sparse_categorical_crossentropy(y, logits, from_logits=True)
                return tf.reduce_mean(found * tf.cast(y > 0, found.dtype))

    return Net([*blocks, head], loss)


def nested(way: Way, segment: Scope) -> Net:
    """Segments in segments, a connection that skips one, a result that leaves from the middle, and the loss inside."""
    blocks, head = [_dense(n, keras.layers.LayerNormalization) for n in range(4)], _head()

    def loss(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with way.outer():
            with way.inner(), segment():
                with segment():
                    first = blocks[0](x, training=True)
                second = tf.nn.relu(first) * 0.7
                with segment():
                    with segment():
                        h = blocks[1](second, training=True)
                    h = tf.sin(h + first)
            with way.inner(), segment():
                h = tf.exp(0.1 * blocks[2](h, training=True))
                with segment():
                    h = blocks[3](h, training=True) + second
                logits = head(h)
                total = _loss(y, logits) + 0.1 * tf.reduce_mean(tf.square(h))
        return total + 0.01 * tf.reduce_mean(tf.abs(first))

    return Net([*blocks, head], loss)


def functional(way: Way, segment: Scope) -> Net:
    """Built in the scopes, not called in them."""
    layers, normal = keras.layers, keras.layers.LayerNormalization
    x = h = keras.Input((LENGTH, WIDTH))
    blocks = [_dense(n, normal) for n in range(4)]
    with way.outer():
        for pair in (blocks[:2], blocks[2:]):
            with way.inner():
                for block in pair:
                    with segment():
                        h = layers.Add()([h, block(h)])
                if pair[0] is blocks[2]:
                    logits = layers.Dense(CLASSES)(layers.Flatten()(h))
    model = keras.Model(x, logits)
    return Net([model], lambda x, y: _loss(y, model(x, training=True)))


NETS = {build.__name__: build for build in (batch_norm, layer_norm, attention, nested, functional)}


FEW_WITH_WAYS = [
    ("batch_norm", "plain"),
    ("batch_norm", "local"),
    ("nested", "split"),
    ("attention", "2x2"),
    ("attention", "accumulate"),
    ("nested", "stages"),
    ("layer_norm", "pipeline"),
    ("functional", "zb-h1"),
]
"""A few nets, with most of the ways."""


def make(net: str, way: str, segment: Scope) -> tuple[Net, Any]:
    """A net from a fixed seed and its step; `segment` is what its layers are in."""
    keras.utils.set_random_seed(7)
    made = NETS[net](WAYS[way], segment)
    rule = keras.optimizers.SGD(0.1, momentum=0.9)
    rule.build(made.trained)

    def step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = made.loss(x, y)
        rule.apply_gradients(zip(tape.gradient(loss, made.trained), made.trained, strict=True))
        return loss

    return made, wh.function(step)


@contextlib.contextmanager
def as_written() -> Iterator[None]:
    """TensorFlow runs graphs as they are: its optimizer adds up in another order where fewer ops read a sum."""
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    try:
        yield
    finally:
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False})


@dataclass
class Outcome:
    """What came of a case.

    Attributes:
      losses, weights: largest differences between the steps with and without the scope.
      repeated: how many ops run again. on_host: how many activations wait on the host, and how many slots lie there.
    """

    losses: float
    weights: float
    repeated: int
    on_host: tuple[int, int]


def compare(net: str, way: str, segment: Scope = wh.recompute) -> Outcome:
    """Trains two equal nets, one whose layers are in a scope of their own."""
    rng = np.random.default_rng(5)
    given = [
        (rng.normal(size=(BATCH, LENGTH, WIDTH)).astype("float32"), rng.integers(0, CLASSES, BATCH))
        for _ in range(STEPS)
    ]
    found = []
    for inside in (contextlib.nullcontext, segment):
        made, step = make(net, way, inside)
        losses = [float(step(tf.constant(x), tf.constant(y))) for x, y in given]
        found.append((losses, [np.asarray(v.numpy()) for v in made.variables]))
        program = step.program_for(*map(tf.constant, given[0]))
    (before, weights), (after, weights_after) = found
    graph = program.capture.graph
    return Outcome(
        losses=max(abs(a - b) for a, b in zip(before, after, strict=True)),
        weights=max(
            float(np.max(np.abs(a.astype("float64") - b.astype("float64"))))
            for a, b in zip(weights, weights_after, strict=True)
        ),
        repeated=sum(op.again > 0 for op in graph.ops),
        on_host=(sum(op.type == TO_HOST for op in graph.ops), sum(spec.on_host for spec in graph.variables)),
    )
