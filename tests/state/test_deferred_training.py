"""Models that were deferred train as others do, exactly, under every scope; the first step lays their variables out."""

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf

import whaleish as wh
from whaleish import world
from whaleish.state import recipe

ROWS, TIME, WORDS, CLASSES = 8, 6, 40, 12


@pytest.fixture(autouse=True)
def _all_are_large(monkeypatch):
    world.init(virtual_devices=4)  # whatever ran before may have cleared Keras's session
    monkeypatch.setattr(recipe, "SMALL", 8)


def mixed_layers():
    return [
        keras.Sequential(
            [
                keras.layers.Embedding(WORDS, 16),
                keras.layers.LayerNormalization(),
                keras.layers.Conv1D(8, 3, padding="same", activation="relu"),
            ]
        ),
        keras.Sequential(
            [
                keras.layers.Flatten(),
                keras.layers.Dense(32, activation="relu", kernel_initializer="orthogonal"),
                keras.layers.LayerNormalization(),
                keras.layers.Dense(CLASSES),
            ]
        ),
    ]


class Block(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.attention = keras.layers.MultiHeadAttention(4, 4)
        self.norms = [keras.layers.LayerNormalization() for _ in range(2)]
        self.wide, self.narrow = keras.layers.Dense(64, activation="gelu"), keras.layers.Dense(16)

    def build(self, shape):
        self.attention.build(shape, shape)
        for norm in self.norms:
            norm.build(shape)
        self.wide.build(shape)
        self.narrow.build((*shape[:-1], 64))

    def call(self, x):
        normed = self.norms[0](x)
        x = x + self.attention(normed, normed)
        return x + self.narrow(self.wide(self.norms[1](x)))


def transformer():
    return [
        keras.Sequential([keras.layers.Embedding(WORDS, 16), Block()]),
        keras.Sequential([keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(CLASSES)]),
    ]


def build(make, seed=3):
    keras.utils.set_random_seed(seed)
    first, second = make()
    first.build((None, TIME))
    second.build((None, TIME, 8 if make is mixed_layers else 16))
    return first, second


SCOPES = {
    "replica": (wh.replica, contextlib.nullcontext),
    "split": (wh.split, contextlib.nullcontext),
    "replica and split": (lambda: wh.replica(2), wh.split),
    "stages": (lambda: wh.pipeline(2), wh.stage),
}


def make_step(models, optimizer, outer, inner):
    @wh.function
    def step(x, y):
        with outer():
            with tf.GradientTape() as tape:
                with inner():
                    hidden = models[0](x, training=True)
                with inner():
                    losses = keras.losses.sparse_categorical_crossentropy(
                        y, models[1](hidden, training=True), from_logits=True
                    )
                loss = tf.reduce_mean(losses)
            weights = [*models[0].trainable_variables, *models[1].trainable_variables]
            optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return loss

    return step


def batch():
    rng = np.random.default_rng(0)
    return rng.integers(0, WORDS, (ROWS, TIME)), rng.integers(0, CLASSES, ROWS)


def every(models, optimizer):
    return [v.value for v in (*models[0].variables, *models[1].variables, *optimizer.variables)]


CASES = [(mixed_layers, scope) for scope in SCOPES] + [(transformer, scope) for scope in ("replica", "split", "stages")]


@pytest.mark.parametrize(("make", "scope"), CASES)
def test_training_is_that_of_a_plain_model(make, scope):
    plain = build(make)
    with wh.deferred():
        waiting = build(make)
    weights = [v.value for model in waiting for v in model.variables]
    assert sum(v.deferred for v in weights) > len(weights) / 2
    losses, variables, waited = [], [], []
    for models in (plain, waiting):
        optimizer = keras.optimizers.Adam(0.01)
        step = make_step(models, optimizer, *SCOPES[scope])
        losses.append([float(step(*batch())) for _ in range(3)])
        variables.append(every(models, optimizer))
        waited.append([v.deferred for v in variables[-1]])
    assert losses[0] == losses[1]
    assert not any(waited[1])
    for one, other in zip(*variables, strict=True):
        assert one.in_parts == other.in_parts
        np.testing.assert_array_equal(one, other)


def test_slots_that_a_step_makes_wait_for_its_plan_whatever_the_model():
    models, optimizer, seen = build(transformer), keras.optimizers.Adam(0.01), []
    usual = optimizer.build

    def watched(variables):
        usual(variables)
        seen.extend(v.value.deferred for v in optimizer.variables if v.shape.rank)

    optimizer.build = watched
    make_step(models, optimizer, *SCOPES["split"])(*batch())
    assert len(seen) > 20
    assert all(seen)
    assert not any(v.deferred for v in every(models, optimizer))
    assert any(v.value.in_parts for v in optimizer.variables)


def test_what_a_failed_step_has_made_can_be_read():
    with wh.deferred():
        models = build(transformer)
    optimizer = keras.optimizers.Adam(0.01)

    @wh.function
    def step(x, y):
        make_step(models, optimizer, *SCOPES["split"])(x, y)
        raise KeyError("of the user's")

    with pytest.raises(KeyError, match="of the user's"):
        step(*batch())
    variables = every(models, optimizer)
    assert sum(v.deferred for v in variables) > 20
    for one, other in zip(models[0].variables, build(transformer)[0].variables, strict=True):
        np.testing.assert_array_equal(one, other)
    for slot in optimizer.variables[2:]:
        np.testing.assert_array_equal(slot, np.zeros(slot.shape))


def two_layers():
    return [keras.layers.Embedding(WORDS, 16), keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(CLASSES)])]


def test_other_slots_too():
    for optimizer in (
        keras.optimizers.SGD(0.1, momentum=0.9),
        keras.optimizers.Ftrl(0.1, initial_accumulator_value=0.2),
        keras.optimizers.AdamW(0.1, use_ema=True, ema_overwrite_frequency=1),
        keras.optimizers.RMSprop(0.1, gradient_accumulation_steps=2),
    ):
        losses = []
        for deferring in (contextlib.nullcontext, wh.deferred):
            with deferring():
                models = build(two_layers)
            copy = type(optimizer).from_config(optimizer.get_config())
            step = make_step(models, copy, *SCOPES["split"])
            losses.append([float(step(*batch())) for _ in range(3)])
        assert losses[0] == losses[1], optimizer.name


def test_mixed_precision():
    losses = []
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        for deferring in (contextlib.nullcontext, wh.deferred):
            with deferring():
                models = build(two_layers)
            optimizer = keras.optimizers.Adam(0.01)
            step = make_step(models, optimizer, *SCOPES["split"])
            losses.append([float(step(*batch())) for _ in range(2)])
            assert {v.dtype for v in every(models, optimizer) if v.shape.rank} == {tf.float32}
    finally:
        keras.config.set_dtype_policy("float32")
    assert losses[0] == losses[1]


def test_a_model_is_built_in_stages_and_scopes():
    def model():
        keras.utils.set_random_seed(3)
        inputs = keras.Input((6,))
        with wh.stage():
            hidden = keras.layers.Dense(8, activation="relu")(inputs)
        with wh.stage():
            return keras.Model(inputs, keras.layers.Dense(4)(hidden))

    with wh.deferred():
        waiting = model()
    losses = []
    for one in (model(), waiting):

        @wh.function
        def step(x, one=one):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(one(x) ** 2)
            for v, g in zip(one.trainable_variables, tape.gradient(loss, one.trainable_variables), strict=True):
                v.assign_sub(0.1 * g)
            return loss

        losses.append([float(step(np.ones([8, 6], "float32"))) for _ in range(3)])
    assert losses[0] == losses[1]


def test_stated_layouts_are_kept():
    with wh.deferred():
        v = tf.Variable(lambda: tf.random.stateless_normal([8, 6], [1, 2]), name="kernel")
    wh.layout(v, "S(1)")
    step = wh.function(lambda x: tf.reduce_sum(x @ v))
    step.explain(np.ones([4, 8], "float32"))
    step.plan_for(np.ones([4, 8], "float32"))
    assert v.deferred
    step(np.ones([4, 8], "float32"))
    assert str(v.parts.layout[0]) == "S(1)"
    np.testing.assert_array_equal(v, tf.random.stateless_normal([8, 6], [1, 2]))
