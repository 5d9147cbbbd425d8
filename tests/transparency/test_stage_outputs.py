"""Steps in stages that predict, count, check or loop: what they return equals one device, without any optimizer."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import whaleish as wh
from tests.transparency.precision import computing_in

layers = keras.layers
X = np.random.default_rng(0).uniform(-1, 1, size=(8, 5, 6))
Y = (np.arange(8) % 6).astype("int64")
Stages = Callable[[Any, Any, tf.Tensor], Any]


def of(first: Callable[[tf.Tensor], tf.Tensor], second: Callable[[tf.Tensor], tf.Tensor]) -> Stages:
    """The two in stages of their own."""

    def both(pipe: Any, stage: Any, x: tf.Tensor) -> tf.Tensor:
        with pipe():
            with stage():
                h = first(x)
            with stage():
                return second(h)

    return both


def gradients(stages: Stages, weights: list[Any], pipe: Any, stage: Any, x: tf.Tensor) -> Any:
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(stages(pipe, stage, x) ** 2)
    return loss, tape.gradient(loss, weights)


def built(*made: Any, width: int = 6) -> list[Any]:
    for layer in made:
        layer.build((None, width))
    return list(made)


def prediction() -> Any:
    lstm, head = layers.LSTM(6), layers.Dense(4)
    head(lstm(X))
    return of(lstm, head)


def training_a_head() -> Any:
    lstm, head = layers.LSTM(6), layers.Dense(4)
    head(lstm(X))
    return lambda *given: gradients(of(lstm, head), head.trainable_variables, *given)


def loop_round_a_layer() -> Any:
    a, b = built(layers.Dense(6), layers.Dense(4))
    return of(lambda x: tf.while_loop(lambda i, h: i < 3, lambda i, h: (i + 1, a(h)), (0, x[:, 0]))[1], b)


def loop_times_its_counter() -> Any:
    a, b = built(layers.Dense(6), layers.Dense(4))

    def first(x: tf.Tensor) -> tf.Tensor:
        body = lambda i, h: (i + 1, h * tf.cast(i, h.dtype))  # noqa: E731
        return tf.while_loop(lambda i, h: i < 3, body, (1, a(x[:, 0])))[1]

    return lambda *given: gradients(of(first, b), a.trainable_variables, *given)


def recurrent_on_both_sides() -> Any:
    a, b, c = layers.LSTM(4, return_sequences=True), layers.GRU(4), layers.Dense(3)
    c(b(a(X)))
    weights = [*a.trainable_variables, *b.trainable_variables]
    return lambda *given: gradients(of(a, lambda h: c(b(h))), weights, *given)


def recurrent_dropout() -> Any:
    a, b, c = layers.LSTM(4, return_sequences=True, recurrent_dropout=0.2, dropout=0.1), layers.GRU(4), layers.Dense(3)
    c(b(a(X)))
    stages = of(lambda x: a(x, training=True), lambda h: c(b(h)))
    return lambda *given: gradients(stages, a.trainable_variables, *given)


def confusion() -> Any:
    a, b = built(layers.Dense(6), layers.Dense(6))
    logits = of(lambda x: a(x[:, 0]), b)
    return lambda *given: tf.math.confusion_matrix(Y + 0 * given[2].shape[0], tf.argmax(logits(*given), -1), 6)


def after(ops: Callable[[tf.Tensor], Any]) -> Any:
    """What micro-batches compute comes after something that is decided over all of them."""
    a, b = built(layers.Dense(6), layers.Dense(4))

    def first(x: tf.Tensor) -> tf.Tensor:
        h = a(x[:, 0])
        with tf.control_dependencies([ops(h)]):
            return tf.identity(h)

    return lambda *given: gradients(of(first, b), a.trainable_variables, *given)


def checked() -> Any:
    return after(lambda h: tf.debugging.assert_less(h, tf.constant(50, h.dtype)))


def printed() -> Any:
    return after(lambda h: tf.print("shape", tf.shape(h)))


STEPS = [
    prediction,
    training_a_head,
    loop_round_a_layer,
    loop_times_its_counter,
    recurrent_on_both_sides,
    recurrent_dropout,
    confusion,
    checked,
    printed,
]


def difference(make: Callable[[], Any]) -> float:
    """The largest one from the step without scopes."""
    with computing_in("float64"):
        made = []
        for pipe, stage, compile in (
            (contextlib.nullcontext, contextlib.nullcontext, tf.function),
            (lambda: wh.pipeline(4), wh.stage, wh.function),
        ):
            keras.utils.set_random_seed(1)
            made.append(tf.nest.flatten(compile(partial(make(), pipe, stage))(X)))
        return max(float(np.max(np.abs(np.subtract(a, b)))) for a, b in zip(*made, strict=True))


@pytest.mark.parametrize("world_of", [2, 4], indirect=True)
@pytest.mark.parametrize("make", STEPS)
def test_equal_to_one_device(world_of: int, make: Callable[[], Any]) -> None:
    assert difference(make) <= 1e-9


@pytest.mark.ranks
def test_lists_are_not_sent(ranks: Any) -> None:
    """What a recurrent layer of one stage reads of another crosses as a tensor, and so does its gradient."""
    assert max(ranks.run(_recurrent, timeout=120)) <= 1e-9


def _recurrent() -> float:
    wh.init()
    return difference(recurrent_on_both_sides)


@pytest.mark.parametrize("world_of", [2], indirect=True)
def test_a_layer_with_a_loop_in_two_stages(world_of: int) -> None:
    lstm = layers.LSTM(6, return_sequences=True)
    lstm(X)
    with pytest.raises(wh.PlanError, match=r"in stage 1 and uses 'lstm.*kernel'.* on stage 0.*Read them before it"):
        wh.function(lambda x: of(lstm, lstm)(lambda: wh.pipeline(4), wh.stage, x))(X.astype("float32"))


@pytest.mark.parametrize("world_of", [4], indirect=True)
def test_a_plan_of_stages_can_be_given_back(world_of: int) -> None:
    a, b = built(layers.Dense(6), layers.Dense(4))
    x = X[:, 0].astype("float32")

    def step(x: tf.Tensor) -> tf.Tensor:
        return of(a, b)(lambda: wh.pipeline(4), wh.stage, x)

    plan = wh.Plan.parse(str(wh.function(step).plan_for(x)))
    given = wh.function(step, plan=plan)
    np.testing.assert_allclose(given(x), b(a(x)), rtol=1e-5)
    assert given.plan_for(x) == plan
