"""A captured step computes what the step computes."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.capture.roundtrip import assert_same, rebuild
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


def test_nested_function_used_twice():
    weights = tf.Variable(tf.random.stateless_normal((4, 4), (1, 2)), name="weights")
    calls = tf.Variable(0, trainable=False, name="calls")

    @tf.function
    def helper(x):
        calls.assign_add(1)
        return tf.nn.tanh(x @ weights) + tf.cast(calls, tf.float32)

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(helper(helper(x)) ** 2)
        weights.assign_sub(0.1 * tape.gradient(loss, weights))
        return loss, calls.read_value()

    captured = assert_same(step, np.ones((3, 4), "float32"))
    graph = captured.graph
    assert not any("PartitionedCall" in op.type for op in graph.ops)
    assert [variable.name for variable in graph.variables] == ["calls", "weights"]
    assert sum(op.type == "MatMul" and op.phase == FORWARD for op in graph.ops) == 2
    assert all(op.phase == BACKWARD for op in graph.ops if op.type == "TanhGrad")


def test_transformer_block_with_dropout():
    keras.utils.set_random_seed(1)
    inputs = keras.Input((6, 8))
    attended = keras.layers.MultiHeadAttention(2, 4, dropout=0.1)(inputs, inputs, use_causal_mask=True)
    hidden = keras.layers.LayerNormalization()(inputs + keras.layers.Dropout(0.2)(attended))
    hidden = keras.layers.LayerNormalization()(hidden + keras.layers.Dense(8)(keras.layers.Dense(16, "gelu")(hidden)))
    model = keras.Model(inputs, keras.layers.Dense(5)(keras.layers.Flatten()(hidden)))
    assert_same(training_step(model, OPTIMIZERS["adamw"](), cross_entropy), *images(shape=(4, 6, 8)), tolerance=1e-5)


def test_lstm():
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((6, 8)), keras.layers.LSTM(4), keras.layers.Dense(5)])
    captured = assert_same(training_step(model, OPTIMIZERS["sgd"](), cross_entropy), *images(shape=(4, 6, 8)))
    loops = [op for op in captured.graph.ops if op.type == "Loop"]
    assert [captured.graph.regions[loop.attrs["regions"][1]].trips for loop in loops] == [6, 6]
    assert not captured.library.function
    bodies = {region for loop in loops for region in loop.attrs["regions"]}
    assert {op.type for op in captured.graph.ops if op.region in bodies} >= {"MatMul", "TensorListPushBack"}


def test_embedding_and_tied_weights():
    keras.utils.set_random_seed(1)
    table = keras.layers.Embedding(20, 8)
    table.build()
    optimizer = keras.optimizers.Adam(1e-2)
    optimizer.build(table.trainable_variables)

    def step(words):
        with tf.GradientTape() as tape:
            logits = table(words[:, :-1]) @ tf.transpose(table.embeddings)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(words[:, 1:], logits))
        gradients = tape.gradient(loss, table.trainable_variables)
        optimizer.apply_gradients(zip(gradients, table.trainable_variables, strict=True))
        return loss

    assert_same(step, np.random.default_rng(0).integers(0, 20, (3, 7)), tolerance=1e-5)


def test_custom_gradient_and_recompute_grad():
    weights = tf.Variable(tf.random.stateless_normal((4, 4), (1, 2)), name="weights")

    @tf.custom_gradient
    def clipped(x):
        return tf.identity(x), lambda dy: tf.clip_by_value(dy, -0.1, 0.1)

    block = tf.recompute_grad(lambda x: tf.nn.tanh(x @ weights))

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(clipped(block(x)) ** 2)
        weights.assign_sub(0.1 * tape.gradient(loss, weights))
        return loss

    assert_same(step, np.ones((3, 4), "float32"))


def test_cond_that_writes_a_variable():
    total = tf.Variable(0.0, name="total")

    def step(x):
        if tf.reduce_sum(x) > 2.0:
            total.assign_add(tf.reduce_sum(x))
        return total.read_value()

    for scale in (0.1, 1.0):
        captured = assert_same(step, np.full((3, 2), scale, "float32"))
        (effect,) = captured.graph.effects
        assert captured.graph.ops[effect].type == "AssignAddVariableOp"
        assert captured.graph.ops[effect].region


def test_metrics():
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(5)])
    metric = keras.metrics.SparseCategoricalAccuracy()
    inner = training_step(model, OPTIMIZERS["sgd"](), cross_entropy)

    def step(inputs, labels):
        loss = inner(inputs, labels)
        metric.update_state(labels, model(inputs))
        return {"loss": loss, "accuracy": metric.result(), "nothing": None}

    captured = assert_same(step, *images(shape=(6, 8)))
    names = [variable.name for variable in captured.graph.variables]
    assert names[-2:] == ["sparse_categorical_accuracy/total", "sparse_categorical_accuracy/count"]


def test_loss_scale_optimizer():
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(5)])
    optimizer = keras.optimizers.LossScaleOptimizer(OPTIMIZERS["sgd"](), initial_scale=8.0)
    optimizer.build(model.trainable_variables)

    def step(inputs, labels):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(cross_entropy(labels, model(inputs)))
            scaled = optimizer.scale_loss(loss)
        gradients = tape.gradient(scaled, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    captured = assert_same(step, *images(shape=(6, 8)))
    assert any(op.type == "Condition" for op in captured.graph.ops)


def test_variables_made_in_the_first_trace():
    made = {}

    def step(x):
        if "v" not in made:
            made["v"] = tf.Variable(tf.ones((2,)), name="made")
        return made["v"].assign_add(x)

    assert_same(tf.function(step), np.ones((2,), "float32"))


def test_variables_have_the_users_names():
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(5, name="head")], name="net")
    step = training_step(model, keras.optimizers.SGD(0.1, momentum=0.9, name="opt"), cross_entropy)
    names = [variable.name for variable in assert_same(step, *images(shape=(6, 8))).graph.variables]
    assert names == [
        "net/head/kernel",
        "net/head/bias",
        "opt/learning_rate",
        "opt/net_head_kernel_momentum",
        "opt/net_head_bias_momentum",
        "opt/iteration",
    ]


def test_captured_tensors_and_tables_are_inputs():
    shift = tf.constant([1.0, 2.0])
    table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer([1, 2], [10.0, 20.0]), -1.0)

    def step(x):
        return x + shift, table.lookup(tf.constant([2, 3]))

    captured = assert_same(step, np.ones((2,), "float32"))
    assert [value.numpy().tolist() for value in captured.captured] == [[1, 2], -1]  # the table's default too
    assert len(captured.resources) == 1
    assert [captured.graph.tensors[t].dtype for t in captured.graph.inputs] == ["float32"] * 3 + ["resource"]


def test_results_keep_their_structure():
    def step(x):
        ragged = tf.RaggedTensor.from_row_lengths(x[0], [1, 3])
        return {"b": (x + 1, None), "a": [3, "text"], "ragged": ragged, "constant": tf.shape(x)}

    assert_same(step, np.ones((2, 4), "float32"))
    captured = assert_same(lambda x: None, np.ones((2,), "float32"))
    assert captured.pack([]) is None


def test_structured_arguments():
    def step(batch, *, scale, names):
        return batch["x"] * scale + tf.cast(batch["pair"][1], tf.float32) + len(names)

    from whaleish.capture import capture, take_apart

    batch = {"x": np.ones((2, 3), "float32"), "pair": (4, tf.constant([1, 2, 3]))}
    captured = capture(step, batch, scale=2.0, names=["a", "b"])
    assert [captured.graph.tensors[t].shape for t in captured.graph.inputs] == [(3,), (2, 3)]
    key = take_apart((batch,), {"scale": 2.0})[0].key
    assert key == take_apart((batch,), {"scale": 2.0})[0].key
    assert key != take_apart((batch,), {"scale": 3.0})[0].key
    assert key != take_apart(({**batch, "x": np.ones((1, 3), "float32")},), {"scale": 2.0})[0].key
    assert hash(key) is not None


def test_ragged_and_sparse_arguments():
    from whaleish.capture import capture

    ragged = tf.RaggedTensor.from_row_lengths(tf.range(4.0), [1, 3])
    sparse = tf.sparse.from_dense([[0.0, 2.0], [3.0, 0.0]])
    captured = capture(lambda r, s: (tf.reduce_sum(r), tf.sparse.to_dense(s)), ragged, sparse)
    again = rebuild(captured)
    total, dense = again(*tf.nest.flatten([ragged, sparse], expand_composites=True))
    assert total == 6
    np.testing.assert_array_equal(dense, [[0, 2], [3, 0]])
