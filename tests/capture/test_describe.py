"""Equal steps are told equal on any process, and of others the first difference is found."""

from __future__ import annotations

import subprocess
import sys

import keras
import numpy as np
import tensorflow as tf

from whaleish import scopes as wh
from whaleish.capture import capture, describe, fingerprint

PROGRAM = """
import hashlib
import sys
import keras, numpy as np, tensorflow as tf
from whaleish import scopes as wh
from whaleish.capture import capture, fingerprint

for _ in range(int(sys.argv[1])):  # numbers that TensorFlow and Keras count, moved on
    keras.layers.Dense(2)(keras.Input((2,)))
    tf.function(lambda x: x + 1).get_concrete_function(tf.TensorSpec(()))
    tf.Variable(1.0)
keras.utils.clear_session()
model = keras.Sequential([keras.Input((6, 8)), keras.layers.LSTM(4), keras.layers.Dropout(0.5), keras.layers.Dense(5)])
optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.AdamW(1e-3, global_clipnorm=1.0))
optimizer.build(model.trainable_variables)

@tf.function
def helper(x):
    with wh.split():
        return tf.nn.tanh(x)

def step(x, y):
    with tf.GradientTape() as tape, wh.replica():
        loss = tf.reduce_mean(keras.losses.sparse_categorical_crossentropy(y, helper(model(x, training=True))))
        loss = optimizer.scale_loss(loss)
    optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    return loss

captured = capture(step, np.ones((4, 6, 8), "float32"), np.zeros((4,), "int64"))
names = [op.name for op in captured.graph.ops] + [f.signature.name for f in captured.library.function]
print(fingerprint(captured.graph), hashlib.sha256(str(names).encode()).hexdigest())
"""


def test_equal_on_two_processes():
    found = []
    for count in ("0", "3"):
        run = subprocess.run([sys.executable, "-c", PROGRAM, count], capture_output=True, text=True, check=False)
        assert run.returncode == 0, run.stderr
        found.append(run.stdout.split()[-2:])
    assert found[0] == found[1]


def network(width=4, scope=wh.replica, scale=1.0):
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(width, "relu"), keras.layers.Dense(2)])

    def step(x):
        with scope():
            return model(x) * scale

    return capture(step, np.ones((3, 8), "float32")).graph


def test_names_do_not_matter():
    one, other = network(), network()
    assert one.variables[0].name != other.variables[0].name
    assert fingerprint(one) == fingerprint(other)


def test_what_differs_is_in_the_lines():
    def changed(**options):
        ours, theirs = describe(network()), describe(network(**options))
        return [pair for pair in zip(ours, theirs, strict=True) if pair[0] != pair[1]]

    assert any("resource[8, 4]" in ours and "resource[8, 5]" in theirs for ours, theirs in changed(width=5))
    assert all("in replica#0" in ours and "in split#0" in theirs for ours, theirs in changed(scope=wh.split))
    assert any("= 1. in replica#0" in ours and "= 2. in replica#0" in theirs for ours, theirs in changed(scale=2.0))


def test_large_constants_are_compared():
    graphs = [
        capture(lambda x, c=c: x + np.full(5000, c, "float32"), np.ones(5000, "float32")).graph for c in (1, 1, 2)
    ]
    assert fingerprint(graphs[0]) == fingerprint(graphs[1]) != fingerprint(graphs[2])


def test_one_line_per_op():
    text = describe(capture(lambda x: tf.matmul(x, x, transpose_b=True), np.ones((2, 3), "float32")).graph)
    assert text[1].startswith("1 MatMul(%0, %0) -> %1 float32[2, 2] {")
    assert "transpose_b=True" in text[1]
    assert text[-3:] == ["inputs %0", "outputs %2", "effects "]
