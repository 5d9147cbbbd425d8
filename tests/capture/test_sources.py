"""Each op knows the user's line, and its phase."""

from __future__ import annotations

import os
import pathlib

import keras
import numpy as np
import tensorflow as tf

from whaleish.capture import capture
from whaleish.graph import BACKWARD, FORWARD, UPDATE


def line_of(mark):
    """Where this file says "# here: <mark>"."""
    lines = pathlib.Path(__file__).read_text().splitlines()
    (number,) = (number for number, line in enumerate(lines, 1) if line.endswith(f"# here: {mark}"))
    return f"{os.path.relpath(__file__)}:{number}"


def test_sources_are_the_users_lines():
    weights = tf.Variable(tf.ones((3, 3)), name="weights")
    dense = keras.layers.Dense(2)
    dense.build((4, 3))

    @tf.function
    def helper(x):
        return tf.tanh(x)  # here: in a called function

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(dense(helper(x @ weights)))  # here: forward
            loss *= tf.cast(tf.shape(x)[0], tf.float32)  # here: folded
        gradient = tape.gradient(loss, weights)  # here: backward
        weights.assign_sub(gradient)  # here: update
        return loss

    graph = capture(step, np.ones((4, 3), "float32")).graph
    found = {op.type: graph.source(number) for number, op in reversed(list(enumerate(graph.ops)))}
    assert found["Tanh"] == line_of("in a called function")
    assert found["MatMul"] == line_of("forward")
    assert found["BiasAdd"] == line_of("forward")  # Keras made it, for that line
    assert found["AssignSubVariableOp"] == line_of("update")
    assert found["TanhGrad"] == line_of("backward")
    assert line_of("folded") in {graph.source(n) for n, op in enumerate(graph.ops) if op.type == "Const"}


def phases(captured, *types):
    return {(op.type, op.phase) for op in captured.graph.ops if op.type in types}


def test_phases():
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [keras.Input((8,)), keras.layers.Dense(4), keras.layers.BatchNormalization(), keras.layers.Dropout(0.5)]
    )
    optimizer = keras.optimizers.AdamW(keras.optimizers.schedules.CosineDecay(0.1, 10), global_clipnorm=1.0)
    optimizer.build(model.trainable_variables)
    metric = keras.metrics.Mean()

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(x, training=True) ** 2)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        metric.update_state(loss)
        return loss, tf.linalg.global_norm(gradients)

    captured = capture(step, np.ones((6, 8), "float32"))
    graph = captured.graph
    assert phases(captured, "SquaredDifference", "RsqrtGrad", "Cos", "Sqrt") == {
        ("SquaredDifference", FORWARD),
        ("RsqrtGrad", BACKWARD),
        ("Cos", UPDATE),
        ("Sqrt", UPDATE),
    }
    handles = {variable.handle: variable.name for variable in graph.variables}
    written = {handles[op.inputs[0]]: op.phase for op in graph.ops if op.type.startswith("Assign")}
    forward = {name for name, phase in written.items() if phase == FORWARD}
    assert {name.rsplit("/")[-1] for name in forward} == {
        "moving_mean",
        "moving_variance",
        "seed_generator_state",
        "total",
        "count",
    }
    assert set(written.values()) == {FORWARD, UPDATE}
    first, second = (graph.ops[graph.tensors[tensor].producer].phase for tensor in graph.outputs)
    assert (first, second) == (FORWARD, UPDATE)


def test_a_step_that_trains_two_networks_in_turn():
    one, two = (tf.Variable(tf.ones((3, 3)), name=name) for name in ("one", "two"))

    def step(x):
        for weights in (one, two):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.sin(x @ one @ two))
            weights.assign_sub(tape.gradient(loss, weights))

    captured = capture(step, np.ones((4, 3), "float32"))
    # Nothing is read of the sines: pruned. The second forward pass reads a weight that was just written.
    assert phases(captured, "MatMul", "Cos") == {("MatMul", FORWARD), ("MatMul", BACKWARD), ("Cos", BACKWARD)}
    assert phases(captured, "AssignSubVariableOp") == {("AssignSubVariableOp", UPDATE)}


def test_inlined_backward_functions_are_backward():
    weights = tf.Variable(tf.ones((3, 3)), name="weights")
    helper = tf.function(lambda x: tf.tanh(x @ weights))

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(helper(x) ** 2)
        weights.assign_sub(tape.gradient(loss, weights))
        return loss

    assert phases(capture(step, np.ones((4, 3), "float32")), "Tanh", "TanhGrad") == {
        ("Tanh", FORWARD),
        ("TanhGrad", BACKWARD),
    }
