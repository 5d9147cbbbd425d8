"""Layers whose weights are split, by hand or by the planner, are the plain layers, forward and backward.

E1 (slapo#10, text-generation-inference#1036): a layer split on its input dim adds its bias once.
E2 (Megatron-LM#1754): 11 classes on 2 parts, 7 on 3: padding never wins, for there is none.
"""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import whaleish as wh
from whaleish.state import storage

layers = keras.layers
RNG = np.random.default_rng(4)
CASES = {
    "Dense": (lambda: layers.Dense(6, bias_initializer="normal"), (5, 8), -2),
    "Conv2D": (lambda: layers.Conv2D(6, 3, padding="same", bias_initializer="normal"), (5, 6, 6, 8), -2),
    "Conv1D": (lambda: layers.Conv1D(6, 3, bias_initializer="normal"), (5, 9, 8), -2),
    "EinsumDense": (
        lambda: layers.EinsumDense("abc,cd->abd", (None, 6), bias_axes="d", bias_initializer="normal"),
        (5, 4, 8),
        0,
    ),
}


def forward_and_back(layer, scope, x):
    """Output, loss, and gradients of the layer's weights and input."""

    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            with scope():
                y = layer(x)
            loss = tf.reduce_mean(tf.square(y) + y)
        return y, loss, tape.gradient(loss, [x, *layer.trainable_variables])

    return step


def assert_close(got, expected, rtol: float = 1e-5, atol: float = 1e-6) -> None:
    for a, b in zip(tf.nest.flatten(got), tf.nest.flatten(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol, atol)


@pytest.mark.parametrize("world_of", [2, 3, 4], indirect=True)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("columns", [False, True])
def test_a_bias_is_added_once(world_of: int, name: str, columns: bool) -> None:
    make, shape, input_dim = CASES[name]
    keras.utils.set_random_seed(3)
    layer = make()
    layer.build(shape)
    x = tf.constant(RNG.normal(size=shape).astype("float32"))
    expected = tf.function(forward_and_back(layer, wh.auto, x))(x)
    dim = -1 if columns else input_dim
    compiled = wh.function(forward_and_back(layer, lambda: wh.split(dim=dim), x))
    for _ in range(2):
        assert_close(compiled(x), expected)
    stored = storage(layer.kernel.value)
    assert stored.layout[0].is_split
    if name != "Conv1D" or columns:  # its kernel reaches the product through an ExpandDims, and the dim is not found
        assert stored.layout[0].dim == dim % len(layer.kernel.shape)


def classes_step(labels_are: str, weights, bias, scope):
    """All that people do with logits, from features [N, 6]."""

    def step(x, labels):
        hot = tf.one_hot(labels, weights.shape[-1])
        with tf.GradientTape() as tape, scope():
            logits = tf.matmul(x, weights) + bias
            if labels_are == "sparse":
                loss = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
            else:
                loss = tf.nn.softmax_cross_entropy_with_logits(hot, logits)
            mean = tf.reduce_mean(loss)
            best = tf.argmax(logits, -1)
            right = tf.reduce_mean(tf.cast(tf.equal(best, tf.cast(labels, best.dtype)), tf.float32))
            top = tf.math.top_k(logits, 3)
            within = tf.math.in_top_k(labels, logits, 3)
        gradients = tape.gradient(mean, [weights, bias])
        return logits, loss, mean, best, right, top.values, top.indices, within, tf.nn.softmax(logits), gradients

    return step


@pytest.mark.parametrize(("world_of", "classes"), [(2, 11), (3, 7), (4, 11), (3, 11)], indirect=["world_of"])
@pytest.mark.parametrize("labels_are", ["sparse", "dense"])
def test_classes_that_do_not_divide(world_of: int, classes: int, labels_are: str) -> None:
    # All logits are negative, so that a padded zero would win; and the last class is the largest, often.
    weights = tf.Variable(-np.abs(RNG.normal(size=(6, classes))).astype("float32"))
    bias = tf.Variable(np.linspace(-9, -5, classes).astype("float32"))
    x = tf.constant(np.abs(RNG.normal(size=(10, 6))).astype("float32"))
    labels = tf.constant(RNG.integers(0, classes, 10).astype("int32"))
    expected = tf.function(classes_step(labels_are, weights, bias, wh.auto))(x, labels)
    compiled = wh.function(classes_step(labels_are, weights, bias, wh.split))
    assert_close(compiled(x, labels), expected)
    assert storage(weights).layout[0].is_split


def test_classes_on_real_ranks(ranks) -> None:
    ranks.run(test_classes_that_do_not_divide, 2, 11, "sparse", timeout=60)


@pytest.mark.parametrize("world_of", [2, 4], indirect=True)
def test_column_then_row(world_of: int) -> None:
    keras.utils.set_random_seed(5)
    net = keras.Sequential(
        [keras.Input((8,)), layers.Dense(16, "relu"), layers.Dense(8, bias_initializer="normal"), layers.Dense(4)]
    )
    x = tf.constant(RNG.normal(size=(6, 8)).astype("float32"))
    expected = tf.function(forward_and_back(net, wh.auto, x))(x)
    assert_close(wh.function(forward_and_back(net, wh.split, x))(x), expected)
    kernels = [storage(layer.kernel.value).layout[0] for layer in net.layers[:2]]
    assert [kernel.dim for kernel in kernels] == [1, 0]
