"""Steps with loops and conditions, made from one seed, that know nothing of devices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import whaleish as wh
from tests.transparency.compare import difference
from tests.transparency.precision import computing_in

STEPS = 5
TIME, FEATURES, UNITS = 4, 16, 32

Step = Callable[[tf.Tensor], Any]
Case = Callable[[Callable[[], Any]], tuple[Step, list[Any]]]
"""Given the scope to run the model in: a step of a batch [batch, TIME, FEATURES], and the variables to compare."""


def _trained(model: Any, optimizer: Any, scope: Callable[[], Any], loss_of: Callable[[tf.Tensor], tf.Tensor]) -> Any:
    optimizer.build(model.trainable_variables)

    def step(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            with scope():
                y = model(x, training=True)
            loss = loss_of(y)
            scaled = optimizer.scale_loss(loss)
        gradients = tape.gradient(scaled, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    return step, [*model.variables, *optimizer.variables]


def _mean_square(y: tf.Tensor) -> tf.Tensor:
    return tf.reduce_mean(tf.square(y - 0.3))


def recurrent(*layers: Callable[[], Any]) -> Case:
    def case(scope: Callable[[], Any]) -> tuple[Step, list[Any]]:
        keras.utils.set_random_seed(3)
        made = [keras.Input((TIME, FEATURES)), *(layer() for layer in layers), keras.layers.Dense(4)]
        return _trained(keras.Sequential(made), keras.optimizers.SGD(0.1, momentum=0.9), scope, _mean_square)

    return case


def dense(make: Callable[[], Any], factor: float = 1.0) -> Case:
    """A net whose optimizer writes its variables in conditions."""

    def case(scope: Callable[[], Any]) -> tuple[Step, list[Any]]:
        keras.utils.set_random_seed(3)
        layers = [keras.layers.Flatten(), keras.layers.Dense(UNITS, activation="relu"), keras.layers.Dense(8)]
        model = keras.Sequential([keras.Input((TIME, FEATURES)), *layers])
        return _trained(model, make(), scope, lambda y: factor * _mean_square(y))

    return case


def embedded(scope: Callable[[], Any]) -> tuple[Step, list[Any]]:
    """The gradient of a table is sparse, and a condition accumulates it."""
    keras.utils.set_random_seed(3)
    table = keras.layers.Embedding(24, UNITS)
    model = keras.Sequential([keras.Input((TIME * FEATURES,), dtype="int32"), table, keras.layers.Dense(8)])
    step, variables = _trained(model, sgd(0.1, gradient_accumulation_steps=2), scope, _mean_square)
    words = lambda x: tf.cast(tf.abs(tf.reshape(x, [-1, TIME * FEATURES])) * 8, "int32") % 24  # noqa: E731
    return lambda x: step(words(x)), variables


def written(body: Callable[[tf.Variable, tf.Tensor], tf.Tensor]) -> Case:
    """A step with a loop of the user's own, on one weight [FEATURES, FEATURES]."""

    def case(scope: Callable[[], Any]) -> tuple[Step, list[Any]]:
        start = np.random.default_rng(3).normal(size=(FEATURES, FEATURES)) * 0.3
        weight = tf.Variable(start.astype(keras.config.floatx()))
        steps = tf.Variable(0)

        def step(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            steps.assign_add(1)
            with tf.GradientTape() as tape:
                with scope():
                    y = body(weight, x)
                loss = _mean_square(y)
            weight.assign_sub(0.1 * tape.gradient(loss, weight))
            return loss, y

        return step, [weight, steps]

    return case


def _while(weight: tf.Variable, x: tf.Tensor) -> tf.Tensor:
    first = tf.reduce_mean(x, 1)
    return tf.while_loop(lambda i, y: i < 5, lambda i, y: (i + 1, tf.tanh(y @ weight) + first), [0, first])[1]


def _until(weight: tf.Variable, x: tf.Tensor) -> tf.Tensor:
    """How often it runs depends on what is summed over all parts."""
    first = tf.reduce_mean(x, 1)
    largest = lambda y: tf.reduce_sum(y * y) > 1.0  # noqa: E731
    return tf.while_loop(lambda y: largest(y), lambda y: (tf.tanh(y @ weight) * 0.4,), [first])[0]


def _map(weight: tf.Variable, x: tf.Tensor) -> tf.Tensor:
    return tf.map_fn(lambda row: tf.tanh(row @ weight), tf.transpose(x, [1, 0, 2]))


def _scan(weight: tf.Variable, x: tf.Tensor) -> tf.Tensor:
    return tf.scan(lambda total, row: tf.tanh(total @ weight + row), tf.transpose(x, [1, 0, 2]))


def _nested(weight: tf.Variable, x: tf.Tensor) -> tf.Tensor:
    first = tf.reduce_mean(x, 1)

    def turn(j: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return j + 1, tf.cond(j % 2 == 0, lambda: tf.tanh(y @ weight), lambda: y * 0.9 - tf.reduce_mean(y, 0))

    def body(i: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return i + 1, tf.while_loop(lambda j, _: j <= i, turn, [0, y])[1] + first

    return tf.while_loop(lambda i, _: i < 4, body, [0, first])[1]


def _normalised(weight: tf.Variable, x: tf.Tensor) -> tf.Tensor:
    """Every iteration sums over the batch, so that ranks talk inside the loop."""
    first = tf.reduce_mean(x, 1)
    body = lambda i, y: (i + 1, tf.tanh((y - tf.reduce_mean(y, 0)) @ weight) + first)  # noqa: E731
    return tf.while_loop(lambda i, y: i < 5, body, [0, first])[1]


def _case(scope: Callable[[], Any]) -> tuple[Step, list[Any]]:
    """Branches that assign, and differ in the layouts of what they make."""
    dtype = keras.config.floatx()
    seen, steps = tf.Variable(tf.zeros([FEATURES], dtype)), tf.Variable(0)

    def step(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        first = tf.reduce_mean(x, 1)
        steps.assign_add(1)

        def assigns() -> tf.Tensor:
            seen.assign_add(tf.reduce_sum(first, 0))
            return first - seen

        branches = [assigns, lambda: first * seen, lambda: tf.zeros_like(first) + tf.reduce_mean(first, 0)]
        with scope():
            y = tf.switch_case(steps % 3, branches)
        return tf.reduce_sum(y), y

    return step, [seen, steps]


sgd, layers = keras.optimizers.SGD, keras.layers
RECURRENT: dict[str, Case] = {
    "lstm": recurrent(lambda: layers.LSTM(UNITS)),
    "gru": recurrent(lambda: layers.GRU(UNITS)),
    "simple": recurrent(lambda: layers.SimpleRNN(UNITS)),
    "stacked": recurrent(
        lambda: layers.LSTM(UNITS, dropout=0.2, seed=5, return_sequences=True),
        lambda: layers.GRU(UNITS, go_backwards=True),
    ),
}
LOOPS: dict[str, Case] = {
    "while": written(_while),
    "until": written(_until),
    "map": written(_map),
    "scan": written(_scan),
    "nested": written(_nested),
    "normalised": written(_normalised),
    "case": _case,
}
OPTIMIZERS: dict[str, Case] = {
    "fixed-scale": dense(lambda: sgd(0.1, loss_scale_factor=64.0)),
    # Too large at first for float32, so that all parts must skip steps until it is halved often enough.
    "dynamic-scale": dense(lambda: keras.optimizers.LossScaleOptimizer(sgd(0.1), initial_scale=2.0**127), 8.0),
    "growing-scale": dense(lambda: keras.optimizers.LossScaleOptimizer(sgd(0.1), dynamic_growth_steps=2)),
    "accumulation": dense(lambda: sgd(0.1, momentum=0.9, gradient_accumulation_steps=2)),
    "embedded": embedded,
    "ema": dense(lambda: sgd(0.1, use_ema=True, ema_momentum=0.9, ema_overwrite_frequency=2)),
}
CASES = RECURRENT | LOOPS | OPTIMIZERS


def dtype_of(name: str) -> str:
    return "float32" if name == "dynamic-scale" else "float64"


SCOPES: dict[str, Callable[[], Any]] = {"replica": wh.replica, "split": wh.split}


@dataclass
class Outcome:
    """What came out of a case, on one rank.

    Attributes:
      results, weights: largest differences from one device, relative to the largest value.
      changes: for each step whether it changed the first variable.
      work: for each part, its share of the operations of one device.
      arguments: shapes of the arguments of the bodies that run.
      sharded: names of the variables that are stored in parts.
      text: what `explain` says.
    """

    results: float
    weights: float
    changes: list[bool]
    work: list[float]
    arguments: set[tuple[int, ...]]
    sharded: list[str]
    text: str


def compare(name: str, scope: str, batch: int, dtype: str = "") -> Outcome:
    """Runs two equal steps, one on one device, and compares results and variables; in float64 if nothing is said."""
    dtype = dtype or dtype_of(name)
    with computing_in(dtype):
        plain_step, alone = CASES[name](wh.replica)
        step, spread = CASES[name](SCOPES[scope])
        return _compare(tf.function(plain_step), wh.function(step), alone, spread, batch, dtype)


def _compare(plain: Any, compiled: Any, alone: list[Any], spread: list[Any], batch: int, dtype: str) -> Outcome:
    rng = np.random.default_rng(5)
    results, changes = 0.0, []
    for _ in range(STEPS):
        x = tf.constant(rng.normal(size=(batch, TIME, FEATURES)).astype(dtype))
        weight = np.asarray(alone[0].numpy())
        expected, found = tf.nest.flatten(plain(x)), tf.nest.flatten(compiled(x))
        results = max(results, *map(difference, expected, found))
        changes.append(bool((np.asarray(alone[0].numpy()) != weight).any()))
    program = compiled.program_for(x)
    return Outcome(
        results=results,
        weights=max(map(difference, alone, spread)),
        changes=changes,
        work=[share.flops / share.step_flops for share in program.shares()],
        arguments={
            tuple(dim.size for dim in attrs.attr["_output_shapes"].list.shape[0].dim)
            for body in program.emitted.bodies
            for attrs in body.arg_attr.values()
            if "_output_shapes" in attrs.attr
        },
        sharded=[name for name, layout in program.plan.variables if any(sbp.is_split for sbp in layout)],
        text=compiled.explain(x),
    )
