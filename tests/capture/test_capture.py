"""A captured step computes what the step computes."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.capture.roundtrip import assert_same
from whaleish.graph import BACKWARD, FORWARD, UPDATE


def training_step(model, optimizer, loss):
    optimizer.build(model.trainable_variables)

    def step(inputs, labels):
        with tf.GradientTape() as tape:
            value = tf.reduce_mean(loss(labels, model(inputs, training=True)))
        gradients = tape.gradient(value, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return value

    return step


def cross_entropy(labels, logits):
    return keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)


def images(seed=0, shape=(6, 8, 8, 3), classes=5):
    numbers = np.random.default_rng(seed)
    return numbers.normal(size=shape).astype("float32"), numbers.integers(0, classes, shape[0])


OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    "adamw": lambda: keras.optimizers.AdamW(1e-3, global_clipnorm=1.0),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_mlp(optimizer):
    keras.utils.set_random_seed(1)
    layers = [keras.Input((8,)), keras.layers.Dense(16, "relu"), keras.layers.Dropout(0.5), keras.layers.Dense(5)]
    step = training_step(keras.Sequential(layers), OPTIMIZERS[optimizer](), cross_entropy)
    captured = assert_same(step, *images(shape=(6, 8)))
    assert {op.phase for op in captured.graph.ops} == {FORWARD, BACKWARD, UPDATE}


def test_cnn_with_batch_norm():
    keras.utils.set_random_seed(1)
    layers = [
        keras.Input((8, 8, 3)),
        keras.layers.Conv2D(4, 3, padding="same"),
        keras.layers.BatchNormalization(),
        keras.layers.ReLU(),
        keras.layers.MaxPooling2D(),
        keras.layers.GlobalAveragePooling2D(),
        keras.layers.Dense(5),
    ]
    assert_same(training_step(keras.Sequential(layers), OPTIMIZERS["sgd"](), cross_entropy), *images())
