"""What a stage may hold: recurrent layers, gradients of the user's own, tables, checks, metrics, statistics."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import whaleish as wh
from tests.transparency.compare import difference
from tests.transparency.precision import computing_in
from whaleish.runtime import StageError

layers = keras.layers
BATCH, WIDTH, CLASSES, MICRO_BATCHES = 10, 32, 10, 4
Half = Callable[[tf.Tensor], tf.Tensor]


@tf.custom_gradient
def clipped(x: tf.Tensor) -> Any:
    return tf.identity(x), lambda gradient: tf.clip_by_value(gradient, -0.01, 0.01)


def built(layer: Any, *shape: int) -> Any:
    layer.build((None, *shape))
    return layer


def gradients_of_ones_own() -> tuple[list[Any], Half, Half]:
    a, b = built(layers.Dense(16, activation="relu"), WIDTH), built(layers.Dense(CLASSES), 16)
    return [a, b], lambda x: clipped(a(x)), lambda h: b(clipped(h))


def recomputed_gradients() -> tuple[list[Any], Half, Half]:
    a, b = built(layers.Dense(16, activation="gelu"), WIDTH), built(layers.Dense(16, activation="tanh"), 16)
    c = built(layers.Dense(CLASSES), 16)
    first, second = tf.recompute_grad(lambda x: a(x)), tf.recompute_grad(lambda x: b(x))
    return [a, b, c], first, lambda h: c(second(h))


def recurrent() -> tuple[list[Any], Half, Half]:
    a, b = built(layers.LSTM(12, return_sequences=True), 4, 8), built(layers.GRU(12), 4, 12)
    c = built(layers.Dense(CLASSES), 12)
    return [a, b, c], lambda x: a(tf.reshape(x, [x.shape[0], 4, 8])), lambda h: c(b(h))


def sparse() -> tuple[list[Any], Half, Half]:
    table, c = layers.Embedding(20, 16), built(layers.Dense(CLASSES), 16)
    table.build((None,))
    return [table, c], lambda x: table(tf.cast(tf.abs(x[:, :6]) * 7, tf.int32) % 20), lambda h: c(tf.reduce_mean(h, 1))


def convolved() -> tuple[list[Any], Half, Half]:
    a, c = built(layers.Conv2D(4, 3, activation="relu"), 8, 4, 1), built(layers.Dense(CLASSES), 24)
    pool, flat = layers.MaxPooling2D((2, 1)), layers.Flatten()
    return [a, c], lambda x: a(tf.reshape(x, [x.shape[0], 8, 4, 1])), lambda h: c(flat(pool(h)))


def checked() -> tuple[list[Any], Half, Half]:
    a, b = built(layers.Dense(16, activation="relu"), WIDTH), built(layers.Dense(CLASSES), 16)

    def first(x: tf.Tensor) -> tf.Tensor:
        tf.debugging.assert_all_finite(x, "not finite")
        h = a(x)
        tf.debugging.assert_non_negative(h)
        return h

    return [a, b], first, b


def guarded() -> tuple[list[Any], Half, Half]:
    """What each micro-batch reads, a weight, comes after a check of a micro-batch."""
    a, b = built(layers.Dense(16, activation="relu"), WIDTH), built(layers.Dense(CLASSES), 16)

    def first(x: tf.Tensor) -> tf.Tensor:
        with tf.control_dependencies([tf.debugging.assert_less(x, tf.constant(100, x.dtype))]):
            kernel = tf.identity(a.kernel)
        return tf.nn.relu(tf.matmul(x, kernel) + a.bias)

    return [a, b], first, lambda h: b(tf.debugging.check_numerics(h, "not finite"))


CONTENTS = [gradients_of_ones_own, recomputed_gradients, recurrent, sparse, convolved, checked, guarded]


def train(content: Callable[[], tuple[list[Any], Half, Half]], pipe: Any, stage: Any, compile: Any) -> tuple[Any, Any]:
    """Losses and variables after three steps, with metrics and a penalty on the weights beside the loss."""
    keras.utils.set_random_seed(3)
    made, first, second = content()
    trained = [variable for layer in made for variable in layer.trainable_variables]
    accuracy, rule = keras.metrics.SparseCategoricalAccuracy(), keras.optimizers.SGD(0.1, momentum=0.9)
    accuracy.update_state(np.zeros(1), np.zeros((1, CLASSES)))
    accuracy.reset_state()
    rule.build(trained)

    def step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            with pipe():
                with stage():
                    h = first(x)
                with stage():
                    logits = second(h)
            losses = keras.losses.sparse_categorical_crossentropy(y, logits, from_logits=True)
            loss = tf.reduce_mean(losses) + 0.01 * sum(map(tf.nn.l2_loss, trained))
        accuracy.update_state(y, logits)
        rule.apply_gradients(zip(tape.gradient(loss, trained), trained, strict=True))
        return loss

    run, rng, losses = compile(step), np.random.default_rng(0), []
    for _ in range(3):
        x, y = rng.normal(size=(BATCH, WIDTH)), rng.integers(0, CLASSES, BATCH).astype("int32")
        losses.append(float(run(tf.constant(x), tf.constant(y))))
    variables = [variable for layer in made for variable in layer.variables]
    return losses, [*variables, *rule.variables, *accuracy.variables]


@pytest.mark.parametrize("world_of", [2], indirect=True)
@pytest.mark.parametrize("content", CONTENTS)
def test_equal_to_one_device(world_of: int, content: Any) -> None:
    with computing_in("float64"):
        losses, variables = train(content, contextlib.nullcontext, contextlib.nullcontext, tf.function)
        staged, spread = train(content, lambda: wh.pipeline(MICRO_BATCHES), wh.stage, wh.function)
    assert np.max(np.abs(np.subtract(losses, staged))) <= 1e-9
    assert max(map(difference, variables, spread)) <= 1e-9


@pytest.mark.parametrize("world_of", [2], indirect=True)
def test_a_gradient_that_only_waits_for_micro_batches(world_of: int) -> None:
    """That of a mean is the same for all rows, and its check comes after that of each micro-batch."""
    w, v = (tf.Variable(tf.random.stateless_uniform([4, 4], [1, k], dtype="float64")) for k in range(2))

    def gradients(x: tf.Tensor, pipe: Any, stage: Any) -> Any:
        with tf.GradientTape() as tape:
            with pipe():
                with stage():
                    h = tf.matmul(x, w)
                with stage():
                    h = tf.debugging.check_numerics(tf.matmul(tf.sqrt(h), v), "not finite")
            loss = tf.reduce_mean(h)
        return tape.gradient(loss, [w, v])

    x = tf.constant(np.random.default_rng(0).uniform(size=(8, 4)))
    staged = wh.function(lambda x: gradients(x, lambda: wh.pipeline(4), wh.stage))
    for ours, expected in zip(staged(x), gradients(x, contextlib.nullcontext, contextlib.nullcontext), strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-12)


@pytest.mark.parametrize("world_of", [2], indirect=True)
@pytest.mark.parametrize("reduction", ["mean_with_sample_weight", "sum_over_batch_size", "sum"])
def test_losses_of_masked_tokens(world_of: int, reduction: str) -> None:
    """Keras divides by sums of masks and weights of the whole batch: known before the micro-batches, from arguments."""
    keras.utils.set_random_seed(3)
    with computing_in("float64"):
        losses = []
        tokens = np.random.default_rng(0).integers(0, 5, (BATCH, 6)).astype("int32")  # a fifth of them are padding
        labels, weights = (np.random.default_rng(k).uniform(size=(BATCH, 6)) for k in (1, 2))
        loss_of = keras.losses.MeanSquaredError(reduction=reduction)
        initial = None
        for pipe, stage, compile in (
            (contextlib.nullcontext, contextlib.nullcontext, tf.function),
            (lambda: wh.pipeline(MICRO_BATCHES), wh.stage, wh.function),
        ):
            x = h = keras.Input((6,), dtype="int32")
            with pipe():
                with stage():
                    h = layers.Embedding(5, 16, mask_zero=True)(h)
                    h = layers.Dense(16, "tanh")(h)
                with stage():
                    h = layers.Dense(1)(layers.LSTM(8, return_sequences=True)(h))
            model, rule = keras.Model(x, h), keras.optimizers.SGD(0.1)
            initial = initial or model.get_weights()
            model.set_weights(initial)
            rule.build(model.trainable_variables)

            def step(x: Any, y: Any, w: Any, model: Any = model, rule: Any = rule) -> Any:
                with tf.GradientTape() as tape:
                    loss = loss_of(y[..., None], model(x, training=True), sample_weight=w)
                gradients = tape.gradient(loss, model.trainable_variables)
                rule.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
                return loss

            run = compile(step)
            losses.append([float(run(*map(tf.constant, (tokens, labels, weights)))) for _ in range(3)])
        np.testing.assert_allclose(losses[1], losses[0], rtol=1e-9)


@pytest.mark.parametrize("world_of", [2], indirect=True)
def test_a_step_that_failed_leaves_nothing_behind(world_of: int) -> None:
    """No variable is changed, and sums begun over micro-batches are no part of the next step's; nor are they kept."""
    w, v = (tf.Variable(tf.random.stateless_uniform([4, 4], [1, k], dtype="float64")) for k in range(2))

    @wh.function
    def step(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            with wh.pipeline(4, "F0 F1 F2 F3 B0 B1 B2 B3\nF0 B0 F1 B1 F2 B2 F3 B3"):
                with wh.stage():
                    h = tf.matmul(x, w)
                with wh.stage():
                    h = tf.debugging.check_numerics(tf.matmul(tf.sqrt(h), v), "not finite")
            loss = tf.reduce_mean(h * h)
        for variable, gradient in zip([w, v], tape.gradient(loss, [w, v]), strict=True):
            variable.assign_sub(gradient)
        return loss

    good, before = np.random.default_rng(0).uniform(size=(8, 4)), [w.numpy(), v.numpy()]
    bad = good.copy()
    bad[7] = -1  # in the last micro-batch: gradients of the others have been added up
    with pytest.raises(StageError, match="stage 1 failed at micro-batch 3"):
        step(bad)
    assert all(np.array_equal(variable, value) for variable, value in zip([w, v], before, strict=True))
    step(good)
    with tf.GradientTape() as tape:
        w_, v_ = map(tf.constant, before)
        tape.watch([w_, v_])
        loss = tf.reduce_mean(tf.square(tf.matmul(tf.sqrt(tf.matmul(good, w_)), v_)))
    for variable, value, gradient in zip([w, v], before, tape.gradient(loss, [w_, v_]), strict=True):
        np.testing.assert_allclose(variable, value - gradient, rtol=1e-12)
    running = step.program_for(good)._running.values()
    totals = [total for chunk in running for total in chunk._totals]
    assert totals
    assert not any(total.exists() for total in totals)


def normalised() -> tuple[list[Any], Half, Half]:
    a, norm = built(layers.Dense(16), WIDTH), built(layers.BatchNormalization(), 16)
    b = built(layers.Dense(CLASSES), 16)

    def second(h: tf.Tensor) -> tf.Tensor:
        with wh.local_statistics():
            return b(norm(h, training=True))

    return [a, norm, b], a, second


@pytest.mark.parametrize("world_of", [2], indirect=True)
def test_statistics_of_each_micro_batch(world_of: int) -> None:
    """As they are without stages, under `accumulate` on one device."""
    from whaleish import world

    with computing_in("float64"):
        staged, spread = train(normalised, lambda: wh.pipeline(MICRO_BATCHES), wh.stage, wh.function)
        world._reset()
        wh.init(devices=1)
        losses, variables = train(normalised, lambda: wh.accumulate(MICRO_BATCHES), contextlib.nullcontext, wh.function)
    assert np.max(np.abs(np.subtract(losses, staged))) <= 1e-9
    assert max(map(difference, variables, spread)) <= 1e-9


@pytest.mark.parametrize("world_of", [2], indirect=True)
def test_in_bfloat16(world_of: int) -> None:
    """Sums over micro-batches are rounded otherwise than one sum is."""

    def mixed() -> tuple[list[Any], Half, Half]:
        a = built(layers.Dense(16, activation="relu", dtype="mixed_bfloat16"), WIDTH)
        b = built(layers.Dense(CLASSES, dtype="mixed_bfloat16"), 16)
        return [a, b], a, lambda h: tf.cast(b(h), tf.float32)

    with computing_in("float32"):
        losses, variables = train(mixed, contextlib.nullcontext, contextlib.nullcontext, tf.function)
        staged, spread = train(mixed, lambda: wh.pipeline(MICRO_BATCHES), wh.stage, wh.function)
    assert np.max(np.abs(np.subtract(losses, staged))) <= 1e-2
    assert max(map(difference, variables, spread)) <= 1e-2


@pytest.mark.parametrize("world_of", [2], indirect=True)
def test_predictions_without_gradients(world_of: int) -> None:
    """A step that only goes forward, and returns what was made of every micro-batch."""
    a, b = built(layers.Dense(16, activation="relu"), WIDTH), built(layers.Dense(CLASSES), 16)

    @wh.function
    def predict(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        with wh.pipeline(MICRO_BATCHES):
            with wh.stage():
                h = a(x)
            with wh.stage():
                logits = b(h)
        return logits, tf.argmax(logits, -1), h

    x = tf.constant(np.random.default_rng(0).normal(size=(BATCH, WIDTH)).astype("float32"))
    logits, best, h = predict(x)
    np.testing.assert_allclose(h, a(x), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(logits, b(a(x)), rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(best, tf.argmax(b(a(x)), -1))
