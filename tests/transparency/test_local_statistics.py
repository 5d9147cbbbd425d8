"""Under `local_statistics()` each part normalises by its own batch; what the statistics update is their mean."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import keras
import numpy as np
import pytest
import tensorflow as tf

import whaleish as wh
from whaleish import world
from whaleish.mesh import Axis
from whaleish.planner.moves import find_moves
from whaleish.rewrite.expand import expand

WIDTH = 6


class Net:
    """Two convolutions with batch norm between them, written out so that the reference can take statistics by part."""

    def __init__(self) -> None:
        rng = np.random.default_rng(3)
        self.first = tf.Variable(rng.normal(size=(3, 3, 2, WIDTH)) * 0.3)
        self.gamma, self.beta = tf.Variable(rng.normal(size=WIDTH)), tf.Variable(rng.normal(size=WIDTH))
        self.last = tf.Variable(rng.normal(size=(WIDTH, 3)))
        self.mean = tf.Variable(np.zeros(WIDTH), trainable=False)
        self.variance = tf.Variable(np.ones(WIDTH), trainable=False)

    @property
    def trained(self) -> list[tf.Variable]:
        return [self.first, self.gamma, self.beta, self.last]

    def normalise(self, x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        mean, variance = tf.nn.moments(x, [0, 1, 2])
        return tf.nn.batch_normalization(x, mean, variance, self.beta, self.gamma, 1e-3), mean, variance

    def step(self, x: tf.Tensor, y: tf.Tensor, batch_norm: Callable[..., tuple[tf.Tensor, ...]]) -> tf.Tensor:
        with tf.GradientTape() as tape:
            h = tf.nn.conv2d(x, self.first, 1, "SAME")
            h, mean, variance = batch_norm(h)
            logits = tf.reduce_mean(tf.nn.relu(h), [1, 2]) @ self.last
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits))
        for variable, gradient in zip(self.trained, tape.gradient(loss, self.trained), strict=True):
            variable.assign_sub(0.5 * gradient)
        self.mean.assign(0.9 * self.mean + 0.1 * mean)
        self.variance.assign(0.9 * self.variance + 0.1 * variance)
        return loss


def reference(net: Net, parts: int, batch: int) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
    """The plain step with statistics over each part of the batch."""
    cuts = Axis("d", parts).cuts(batch)

    def by_part(h: tf.Tensor) -> tuple[tf.Tensor, ...]:
        made = [net.normalise(h[a:b]) for a, b in itertools.pairwise(cuts)]
        return tf.concat([m[0] for m in made], 0), *(tf.add_n([m[i] for m in made]) / parts for i in (1, 2))

    return tf.function(lambda x, y: net.step(x, y, by_part))


def local(net: Net) -> wh.Function:
    def own(h: tf.Tensor) -> tuple[tf.Tensor, ...]:
        with wh.local_statistics():
            return net.normalise(h)

    return wh.function(lambda x, y: net.step(x, y, own))


def differences(parts: int, batch: int) -> tuple[float, float, int]:
    """Largest differences of losses and of variables after four steps, and how many moves the forward pass makes."""
    plain, spread = Net(), Net()
    expected, actual = reference(plain, parts, batch), local(spread)
    rng = np.random.default_rng(0)
    losses = 0.0
    for _ in range(4):
        x, y = tf.constant(rng.normal(size=(batch, 5, 5, 2))), tf.constant(rng.integers(0, 3, batch))
        losses = max(losses, abs(float(expected(x, y)) - float(actual(x, y))))
    ours, theirs = ([*net.trained, net.mean, net.variance] for net in (spread, plain))
    weights = max(float(np.max(np.abs(a.numpy() - b.numpy()))) for a, b in zip(ours, theirs, strict=True))
    program = actual.program_for(x, y)
    graph, plan = expand(program.capture.graph, program.plan)
    moves = [m for m in find_moves(graph, plan).values() if m.nbytes and m.reader >= 0]
    return losses, weights, sum(graph.ops[m.reader].phase == "forward" and m.source[0].kind == "P" for m in moves)


@pytest.mark.parametrize("parts", [1, 2, 3, 4])
@pytest.mark.parametrize("batch", [12, 10])
def test_in_one_process(parts: int, batch: int) -> None:
    world._reset()
    wh.init(devices=parts)
    try:
        losses, weights, dependent = differences(parts, batch)
    finally:
        world._reset()
        wh.init(virtual_devices=4)
    assert losses < 1e-9
    assert weights < 1e-9
    assert dependent <= 1, "only the loss is reduced in the forward pass"


@pytest.mark.ranks
@pytest.mark.parametrize("ranks", [2], indirect=True)
def test_on_real_ranks(ranks) -> None:
    for losses, weights, _ in ranks.run(_on_rank, timeout=60):
        assert losses < 1e-9
        assert weights < 1e-9


def _on_rank() -> tuple[float, float, int]:
    import whaleish
    from tests.transparency.test_local_statistics import differences

    whaleish.init()
    return differences(2, 10)


def test_keras_batch_norm_runs_and_differs_from_sync() -> None:
    """A Keras model: every part normalises by itself, so the result is not the synchronised one."""

    def losses(scope: Callable[[], object]) -> list[float]:
        keras.utils.set_random_seed(3)
        layers = keras.layers
        model = keras.Sequential([keras.Input((4, 4, 2)), layers.Conv2D(4, 3), layers.BatchNormalization()])

        @wh.function
        def step(x):
            with tf.GradientTape() as tape, scope():
                loss = tf.reduce_mean(tf.square(model(x, training=True) - 1.0))
            for v, g in zip(model.trainable_variables, tape.gradient(loss, model.trainable_variables), strict=True):
                v.assign(v - 0.1 * g)
            return loss

        x = np.random.default_rng(1).normal(size=(8, 4, 4, 2)).astype("float32")
        return [float(step(tf.constant(x))) for _ in range(3)]

    own, sync = losses(wh.local_statistics), losses(wh.replica)
    assert np.all(np.isfinite(own))
    assert abs(own[0] - sync[0]) > 1e-6
