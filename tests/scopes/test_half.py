"""`wh.half`: what reads and computes in half precision inside, under a plain `tf.function`, and what is refused."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import whaleish as wh
from tests.test_readme import MEMORY, blocks


def weight(shape=(3, 3), **options) -> tf.Variable:
    return tf.Variable(np.linspace(0.1, 0.9, int(np.prod(shape))).reshape(shape).astype("float32"), **options)


def traced(function):
    """Calls a function once, in a trace."""
    return tf.function(function, autograph=False)()


def test_every_way_of_reading_a_weight() -> None:
    w, v = weight(), weight((3,))
    x = tf.ones([2, 3], tf.bfloat16)

    def ways():
        with wh.half("bfloat16"):
            found = [
                w.value(),
                w.read_value(),
                tf.convert_to_tensor(w),
                tf.identity(w),
                x @ w,
                tf.matmul(x, w),
                tf.einsum("ij,jk->ik", x, w),
                x + v,
                v + x,
                v * 2.0,
                -v,
                w[0],
                tf.gather(w, [0]),
                tf.nn.embedding_lookup(w, [0]),
                tf.gather_nd(w, [[0, 0]]),
                tf.nn.bias_add(x, v),
                tf.reduce_sum(w),
                tf.concat([w, w], 0),
            ]
            dtypes = [one.dtype for one in found]
            with wh.half(None):
                dtypes.append(tf.identity(w).dtype)
            with wh.half("float16"):
                dtypes.append(tf.identity(w).dtype)
        return [*dtypes, tf.identity(w).dtype]

    found: list = []
    traced(lambda: found.extend(ways()))
    *halves, none, inner, outside = found
    assert set(halves) == {tf.bfloat16}
    assert (none, inner, outside) == (tf.float32, tf.float16, tf.float32)


def test_gradients_are_of_the_weights_type_and_unrounded_outside() -> None:
    w = weight()

    def step():
        with wh.half("bfloat16"), tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.cast(tf.ones([2, 3], tf.bfloat16) @ w, tf.float32))
        return tape.gradient(loss, w)

    gradient = traced(step)
    assert gradient.dtype == tf.float32
    np.testing.assert_array_equal(gradient, np.full([3, 3], 2.0))


def test_in_loops_and_conditions() -> None:
    w = weight()

    @tf.function
    def step(n):
        h = tf.ones([2, 3], tf.bfloat16)
        with wh.half():
            for _ in tf.range(n):
                h = h @ w
            if n > 1:
                h = h + w[0]
        return h

    assert step(tf.constant(2)).dtype == tf.bfloat16


def test_other_variables_read_as_they_are() -> None:
    others = [weight(trainable=False), tf.Variable([1, 2]), tf.Variable([1.0], dtype=tf.float64)]
    found: list = []

    def step():
        with wh.half("float16"):
            found.extend(tf.identity(other).dtype for other in others)

    traced(step)
    assert found == [tf.float32, tf.int32, tf.float64]


def test_layers_compute_as_under_a_mixed_policy() -> None:
    x = tf.random.stateless_normal([4, 6], [1, 2])

    def model(policy):
        keras.utils.set_random_seed(0)
        layers = [
            keras.layers.Dense(8, "gelu", dtype=policy),
            keras.layers.BatchNormalization(dtype=policy),
            keras.layers.LayerNormalization(dtype=policy),
            keras.layers.Reshape((2, 4), dtype=policy),
            keras.layers.MultiHeadAttention(2, 4, dtype=policy),
            keras.layers.LSTM(5, dtype=policy),
            keras.layers.Dense(3, "softmax", dtype=policy),
        ]
        h = inputs = keras.Input((6,))
        for layer in layers:
            h = layer(h, h) if isinstance(layer, keras.layers.MultiHeadAttention) else layer(h)
        return keras.Model(inputs, h)

    plain, mixed = model(None), model("mixed_bfloat16")
    before = traced(lambda: plain(x))

    def halved():
        with wh.half("bfloat16"):
            return plain(x, training=True)

    found, expected = traced(halved), traced(lambda: mixed(x, training=True))
    assert found.dtype == expected.dtype == tf.bfloat16
    np.testing.assert_array_equal(tf.cast(found, tf.float32), tf.cast(expected, tf.float32))
    for own, other in zip(plain.variables, mixed.variables, strict=True):  # also the averages
        assert own.dtype == other.dtype
        np.testing.assert_array_equal(own.numpy(), other.numpy())
    assert before.dtype == traced(lambda: plain(x)).dtype == tf.float32


def test_layers_of_other_policies_compute_as_these_say() -> None:
    kinds = {"float64": tf.float64, "mixed_float16": tf.float16, "bfloat16": tf.bfloat16}
    layers = [keras.layers.Dense(2, dtype=kind) for kind in kinds]
    for layer in layers:
        layer.build((None, 3))
    found: list = []

    def step():
        with wh.half("bfloat16"):
            found.extend(layer(tf.ones([1, 3])).dtype for layer in layers)
            with wh.half(None):
                found.append(keras.layers.Identity()(tf.ones([1, 3])).dtype)

    traced(step)
    assert found == [*kinds.values(), tf.float32]


def test_in_the_call_of_a_layer() -> None:
    class Block(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.inner = keras.layers.Dense(2)

        def call(self, x):
            with wh.half("bfloat16"):
                return tf.cast(self.inner(x), tf.float32) + 0 * tf.cast(self.inner.kernel[0], tf.float32)

    block, x = Block(), tf.constant([[0.123456, 0.2345678, 0.3456789]])
    eager = block(x)
    np.testing.assert_allclose(eager, traced(lambda: block(x)), rtol=1e-6)
    rounded = tf.cast(tf.cast(eager, tf.bfloat16), tf.float32)
    np.testing.assert_array_equal(eager, rounded)


@pytest.mark.parametrize("dtype", ["float32", "half", tf.float64, 16])
def test_other_types_are_refused(dtype) -> None:
    with pytest.raises(wh.ScopeError, match="give 'bfloat16' or 'float16'"):
        wh.half(dtype)


def test_outside_a_trace_it_is_refused() -> None:
    with pytest.raises(wh.ScopeError, match="mixed_float16"), wh.half("float16"):
        pass


@pytest.mark.parametrize("update", ["assign", "optimizer", "optimizer of Keras variables"])
def test_updates_inside_are_refused(update: str) -> None:
    w, rule = weight(), keras.optimizers.SGD(0.1)
    layer = keras.layers.Dense(2)
    layer.build((None, 3))
    weights = [w] if update == "optimizer" else layer.trainable_variables
    rule.build(weights)

    def step():
        with wh.half():
            if update == "assign":
                w.assign_sub(tf.ones([3, 3]))
            else:
                rule.apply_gradients([(tf.ones(v.shape), v) for v in weights])

    with pytest.raises(wh.ScopeError, match="optimizer after the scope"):
        traced(step)


def test_an_input_of_float32_is_named() -> None:
    w = weight((3,))

    def step():
        with wh.half():
            return tf.nn.bias_add(tf.ones([2, 3]), w)

    with pytest.raises(ValueError, match=r"tf\.cast"):
        traced(step)


@pytest.mark.parametrize("world_of", [4], indirect=True)
def test_the_example_of_the_page_learns(world_of: int) -> None:
    (program,) = (block for block in blocks(MEMORY, "py") if "wh.half" in block)
    given = {
        "initial": tf.random.stateless_normal([64, 128], [1, 2]) / 8,
        "loss_of": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    }
    known = {"keras": keras, "tf": tf, "wh": wh, **given}
    exec(program.replace("@wh.function\n", ""), known)  # what has no file is not converted, and no source is read
    step, x = wh.function(known["train_step"]), tf.random.stateless_normal([16, 64], [3, 4])
    losses = [float(step(x, tf.range(16))) for _ in range(4)]
    assert losses == sorted(losses, reverse=True)
    assert known["w"].in_parts
    assert known["w"].dtype == tf.float32


def test_a_scope_can_be_used_again_and_ends_with_an_error() -> None:
    w, scope = weight(), wh.half("float16")

    def step():
        with pytest.raises(KeyError), scope, scope:
            raise KeyError
        with scope:
            inside = tf.identity(w).dtype
        return inside, tf.identity(w).dtype

    found: list = []
    traced(lambda: found.extend(step()))
    assert found == [tf.float16, tf.float32]
