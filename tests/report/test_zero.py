"""`explain` names what stays whole in spite of `replica(zero=...)`."""

import keras
import numpy as np
import tensorflow as tf

import whaleish as wh


def explain(rule: keras.Optimizer, zero: int) -> str:
    layers = keras.layers
    model = keras.Sequential([layers.Embedding(80, 64), layers.Flatten(), layers.Dense(70), layers.Dense(3)])
    model.build((None, 4))
    rule.build(model.trainable_variables)

    @wh.function
    def step(x):
        with tf.GradientTape() as tape, wh.replica(zero=zero):
            loss = tf.reduce_mean(model(x) ** 2)
        weights = model.trainable_variables
        rule.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return loss

    return step.explain(np.zeros((8, 4), "int32"))


def test_what_an_op_without_parts_updates() -> None:
    text = explain(keras.optimizers.Adafactor(0.1), 3)
    assert "1 variables are whole in spite of replica(zero=...):" in text
    line = next(line for line in text.splitlines() if "embeddings: " in line)
    assert line.startswith("  float32[80, 64]")
    assert "ResourceScatterSub" in line
    assert "test_zero.py" in line


def test_nothing_where_all_is_in_pieces_or_nothing_was_asked() -> None:
    assert "in spite" not in explain(keras.optimizers.Adam(0.1), 3)
    assert "in spite" not in explain(keras.optimizers.Adafactor(0.1), 0)
