"""`replica(zero=...)`: results are those of one device, and of the state each device has its share."""

from __future__ import annotations

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf

import whaleish as wh
from tests.products import either, pairwise
from tests.transparency.precision import computing_in
from tests.transparency.sharded import RULES, SCOPES, STAGED, TOKENS, WIDTH, Outcome, train

EVEN = 1.1
"""Of the largest part of a dim over an even one: 35 of 64 columns, say, over 2 devices."""


def check(outcome: Outcome, zero: int, scopes: str, parts: int) -> None:
    assert outcome.losses <= 1e-9
    assert outcome.variables <= 1e-9
    assert outcome.slots <= EVEN / parts
    assert outcome.weights <= (EVEN / parts if zero == 3 else 1 / (2 if "split" in scopes else 1))
    if zero > 1:
        assert outcome.gradients <= EVEN / parts
    if "accumulate" in scopes and zero > 1:
        return  # the gradients of each micro-batch are sent
    # Without pieces only the rows of an embedding's gradient are gathered, and the new table by nobody.
    table = 2 * 8 * TOKENS * WIDTH * (parts - 1)
    assert outcome.sent <= outcome.plain * (1.5 if zero == 3 else 1.0) + table + 1000


def parts_of(scopes: str, devices: int) -> int:
    return 2 if scopes in STAGED else devices


@pytest.mark.parametrize(
    *pairwise(
        rule=either(["adamw", "adafactor", "scaled"], RULES),
        zero=[1, 2, 3],
        scopes=[scopes for scopes in SCOPES if scopes != "split"],
        world_of=[4],
    ),
    indirect=["world_of"],
)
def test_in_one_process(rule: str, zero: int, scopes: str, world_of: int) -> None:
    check(train(rule, zero, scopes, 10), zero, scopes, parts_of(scopes, world_of))


@pytest.mark.parametrize(
    *pairwise(rule=either(["adamw"], RULES), zero=[1, 2, 3], scopes=["replica"], world_of=[2, 3]), indirect=["world_of"]
)
def test_on_other_numbers_of_devices(rule: str, zero: int, scopes: str, world_of: int) -> None:
    check(train(rule, zero, scopes, 10), zero, scopes, world_of)


def test_what_is_made_before_all_micro_batches_waits_for_none() -> None:
    """The gradient of gelu squares what follows from the batch alone, and waits for what it multiplies that with."""
    check(train("sgd", 3, "replica x accumulate(3)", 10), 3, "replica x accumulate(3)", 4)


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("ranks", "cases"),
    [
        (2, [("adamw", 1, "replica"), ("lion", 2, "replica x accumulate(3)"), ("scaled", 3, "replica")]),
        (3, [("sgd", 2, "replica"), ("adafactor", 3, "replica")]),
        (4, [("adamw", 3, "replica x split"), ("lion", 3, "pipeline(3)"), ("sgd", 1, "stages")]),
    ],
    indirect=["ranks"],
)
def test_on_real_ranks(ranks, cases: list[tuple[str, int, str]]) -> None:
    def run(cases):
        return [train(*case, 10) for case in cases]

    for outcomes in ranks.run(run, cases, timeout=200):
        for outcome, (_, zero, scopes) in zip(outcomes, cases, strict=True):
            check(outcome, zero, scopes, parts_of(scopes, ranks.size))


def equal_steps(make, *batches) -> str:
    """Runs a step of new variables, made alike, plainly and compiled; what `explain` says of it.

    Args:
      make: is given scopes; returns the variables and the step.
    """
    plain, alone = make(contextlib.nullcontext())
    spread, step = make(wh.replica(zero=3))
    compiled, alone = wh.function(step), tf.function(alone)
    for batch in batches:
        np.testing.assert_allclose(compiled(*batch), alone(*batch), rtol=1e-9)
    for ours, theirs in zip(spread, plain, strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-9, atol=1e-12)
    return compiled.explain(*batches[0])


@pytest.mark.parametrize(
    "lookup", [tf.nn.embedding_lookup, lambda table, ids: tf.gather(tf.convert_to_tensor(table), ids)]
)
def test_a_table_is_not_gathered_for_a_few_rows(lookup) -> None:
    def make(scope):
        table = tf.Variable(np.random.default_rng(0).normal(size=(1000, 16)))
        rule = keras.optimizers.Adam(0.01)
        rule.build([table])

        def step(ids, y):
            with tf.GradientTape() as tape, scope:
                loss = tf.reduce_mean((tf.reduce_sum(lookup(table, ids), -1) - y) ** 2)
            rule.apply_gradients(zip(tape.gradient(loss, [table]), [table], strict=True))
            return loss

        return [table, *rule.variables], step

    batches = [(np.arange(8, dtype="int32") * k % 999, np.ones(8)) for k in (1, 2, 3)]
    text = equal_steps(make, *batches)
    assert "[1000, 16]  ReadVariableOp" not in text, text


def test_what_is_assigned_in_slices_lies_along_another_dim_or_whole() -> None:
    def make(scope):
        weight = tf.Variable(np.random.default_rng(0).normal(size=(80, 80)))
        table = tf.Variable(np.ones(5000))

        def step(x):
            with tf.GradientTape() as tape, scope:
                loss = tf.reduce_mean(tf.tanh(x @ weight) ** 2) + tf.reduce_mean(table)
            weight.assign_sub(tape.gradient(loss, weight))
            weight[0, 3:9].assign(tf.zeros(6, weight.dtype))
            table[7:9].assign(tf.zeros(2, weight.dtype))
            return loss

        return [weight, table], step

    x = np.random.default_rng(1).normal(size=(8, 80))
    assert "2 variables are whole in spite" in equal_steps(make, (x,), (x,))


def test_recurrent_layers_in_micro_batches() -> None:
    def make(scope):
        with computing_in("float64"):
            keras.utils.set_random_seed(1)
            model = keras.Sequential([keras.layers.Embedding(203, 37, mask_zero=True), keras.layers.LSTM(40)])
            model.build((None, 6))
        weights = model.trainable_variables

        def step(ids):
            with tf.GradientTape() as tape, scope, wh.accumulate(2):
                loss = tf.reduce_mean(model(ids) ** 2)
            for weight, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
                weight.assign_sub(0.1 * tf.convert_to_tensor(gradient))
            return loss

        return [weight.value for weight in weights], step

    rng = np.random.default_rng(2)
    equal_steps(make, *((rng.integers(0, 203, (8, 6)),) for _ in range(2)))


def test_recomputing_round_the_update_as_well() -> None:
    def make(scope):
        weight = tf.Variable(np.eye(80))
        rule = keras.optimizers.Adam(0.01)
        rule.build([weight])

        def step(x):
            with scope, wh.recompute():
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean(tf.tanh(x @ weight) ** 2)
                rule.apply_gradients(zip(tape.gradient(loss, [weight]), [weight], strict=True))
            return loss

        return [weight, *rule.variables], step

    x = np.random.default_rng(1).normal(size=(8, 80))
    equal_steps(make, (x,), (x,))
