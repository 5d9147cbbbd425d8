"""Micro-batches are an axis of time: results are those of the whole batch, and each sees its own rows only."""

from __future__ import annotations

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf

import whaleish as wh
from tests.fresh import run_fresh
from tests.products import either, pairwise
from tests.transparency.compare import Outcome, compare
from tests.transparency.precision import computing_in
from tests.transparency.zoo import nested

CLASSES = {"mlp": 12, "transformer": 12, "classifier": 1000}


def check(outcome: Outcome, devices: int, model: str, batch: int, cut: bool = True) -> None:
    assert outcome.losses <= 1e-9
    assert outcome.weights <= 1e-9
    rows = -(-batch // devices)
    for device, share in outcome.work.items():
        assert share <= rows / batch + 0.05, f"{device} did {share:.1%} of the work"
    if cut:
        assert (rows, CLASSES[model]) not in outcome.shapes, "the logits of a device's batch are whole"


@pytest.mark.parametrize(
    *pairwise(
        model=either(["mlp", "transformer"], CLASSES),
        world_of=[1, 2, 3],
        count=either([2, 4, 7], [1, 2, 4, 7, 8]),
        rule=[("sgd", False), ("adamw", True)],
        batch=[14, 10],
    ),
    indirect=["world_of"],
)
def test_in_one_process(model: str, world_of: int, count: int, rule: tuple[str, bool], batch: int) -> None:
    outcome = compare(model, f"accumulate({count})", *rule, batch)
    check(outcome, world_of, model, batch, cut=count > 1)


@pytest.mark.parametrize(
    ("model", "scopes", "world_of"),
    either([("transformer", "replica x accumulate(3) x split", 4)], [("classifier", "accumulate(3) x split", 2)]),
    indirect=["world_of"],
)
def test_with_split(model: str, scopes: str, world_of: int) -> None:
    outcome = compare(model, scopes, "adamw", True, 14)
    check(outcome, world_of // 2 if model == "transformer" else 1, model, 14)
    assert outcome.stored, "no variable is sharded"


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("ranks", "model", "scopes"),
    [
        (2, "mlp", "accumulate(4)"),
        (2, "transformer", "accumulate(3)"),
        (4, "transformer", "replica x accumulate(3) x split"),
    ],
    indirect=["ranks"],
)
def test_on_real_ranks(ranks, model: str, scopes: str) -> None:
    for outcome in ranks.run(compare, model, scopes, "adamw", True, 14, timeout=120):
        check(outcome, 2, model, 14)


def recurrent(seed: int) -> tuple[keras.Model, keras.Optimizer]:
    keras.utils.set_random_seed(seed)
    layers = keras.layers
    model = keras.Sequential([layers.LSTM(6, return_sequences=True), layers.GRU(6), layers.Dense(3)])
    model.build((None, 5, 4))
    rule = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1, gradient_accumulation_steps=2, use_ema=True))
    rule.build(model.trainable_variables)
    return model, rule


@pytest.mark.parametrize("world_of", [2], indirect=True)
def test_loops_conditions_and_masked_losses(world_of: int) -> None:
    """The divisor, a sum of weights, is that of the whole batch, and computed before the first micro-batch."""

    def make(around):
        model, rule = recurrent(3)

        def step(x, y, weights):
            with tf.GradientTape() as tape, around():
                logits = model(x, training=True)
                each = tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits)
                loss = tf.reduce_sum(each * weights) / tf.reduce_sum(weights)
            rule.apply_gradients(
                zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True)
            )
            return loss, logits

        return [*model.variables, *rule.variables], step

    with computing_in("float64"):
        plain, step = make(wh.auto)
        alone = tf.function(step)
        accumulated, step = make(lambda: wh.accumulate(3))
        compiled = wh.function(step)
        rng = np.random.default_rng(1)
        for _ in range(4):
            given = [tf.constant(rng.normal(size=(10, 5, 4))), tf.constant(rng.integers(0, 3, 10))]
            given.append(tf.constant(rng.uniform(size=10)))
            for ours, theirs in zip(compiled(*given), alone(*given), strict=True):
                np.testing.assert_allclose(ours, theirs, rtol=1e-9)
        for ours, theirs in zip(accumulated, plain, strict=True):
            np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-9, atol=1e-12)
        program = compiled.program_for(*given)
        assert all(share.flops <= 0.6 * share.step_flops for share in program.shares())


def normalised() -> tuple[keras.Model, keras.Optimizer]:
    keras.utils.set_random_seed(5)
    model = keras.Sequential([keras.layers.Dense(8), keras.layers.BatchNormalization(), keras.layers.Dense(3)])
    model.build((None, 4))
    rule = keras.optimizers.SGD(0.1)
    rule.build(model.trainable_variables)
    return model, rule


def loss_of(y, logits):
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits))


def step_of(model: keras.Model, rule: keras.Optimizer, *scopes):
    @wh.function
    def step(x, y):
        with tf.GradientTape() as tape, nested(*scopes):
            loss = loss_of(y, model(x, training=True))
        rule.apply_gradients(
            zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True)
        )
        return loss

    return step


def test_statistics_of_the_whole_batch_are_refused() -> None:
    step = step_of(*normalised(), wh.accumulate(2))
    with pytest.raises(wh.PlanError, match=r"for each micro-batch and needs Mean '.*moments/mean'.*local_statistics"):
        step(tf.ones((8, 4)), tf.zeros(8, tf.int32))


@pytest.mark.parametrize("world_of", [2], indirect=True)
def test_statistics_of_each_micro_batch(world_of: int) -> None:
    """What moves the averages is the mean over all micro-batches of all devices."""
    with computing_in("float64"):
        model, rule = normalised()
        step = step_of(model, rule, wh.accumulate(3), wh.local_statistics())
        plain, plain_rule = normalised()
        norm, rng = plain.layers[1], np.random.default_rng(2)
        for _ in range(3):
            x, y = rng.normal(size=(12, 4)), rng.integers(0, 3, 12)
            before, after = [v.numpy() for v in norm.non_trainable_variables], []
            with tf.GradientTape() as tape:
                logits = []
                for rows in np.split(x, 2 * 3):
                    norm.set_weights([*(v.numpy() for v in norm.trainable_variables), *before])
                    logits.append(plain(rows, training=True))
                    after.append([v.numpy() for v in norm.non_trainable_variables])
                loss = loss_of(y, tf.concat(logits, 0))
            gradients = tape.gradient(loss, plain.trainable_variables)
            plain_rule.apply_gradients(zip(gradients, plain.trainable_variables, strict=True))
            means = [np.mean(values, 0) for values in zip(*after, strict=True)]
            norm.set_weights([*(v.numpy() for v in norm.trainable_variables), *means])
            np.testing.assert_allclose(step(x, y), loss, rtol=1e-9)
        for ours, theirs in zip(model.variables, plain.variables, strict=True):
            np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-9, atol=1e-12)


def test_a_batch_of_fewer_rows_than_micro_batches() -> None:
    """Refused at first; the last batch of an epoch is taken whole."""
    weight = tf.Variable(tf.ones((2, 2)))

    @wh.function
    def step(x):
        with wh.accumulate(4):
            return tf.reduce_sum(x @ weight)

    with pytest.raises(wh.PlanError, match=r"'step' was called with a batch of 3 rows.*accumulate\(4\)"):
        step(tf.ones((3, 2)))
    assert float(step(tf.ones((8, 2)))) == 32
    assert float(step(tf.ones((3, 2)))) == 12


@pytest.mark.parametrize("count", [0, -1, 2.5, True])
def test_counts_that_are_none(count) -> None:
    with pytest.raises(wh.ScopeError, match=r"accumulate\(.*at least 1"):
        wh.accumulate(count)


def test_two_counts_on_one_axis() -> None:
    @wh.function
    def step(x):
        with wh.accumulate(2):
            x = x * 2
        with wh.accumulate(3):
            return tf.reduce_sum(x)

    with pytest.raises(wh.PlanError, match=r"one axis of the mesh.*same micro_batches"):
        step(tf.ones((6, 2)))


SCRIPT = """
import sys
import keras
import tensorflow as tf
import whaleish as wh
from tools.bench.worker import peak_bytes
wh.init(virtual_devices=1)
count = int(sys.argv[1])
model = keras.Sequential([keras.layers.Dense(512, activation="gelu") for _ in range(6)])
model.build((None, 64))
rule = keras.optimizers.SGD(0.1)
rule.build(model.trainable_variables)

@wh.function
def step(x):
    with tf.GradientTape() as tape, wh.accumulate(count):
        loss = tf.reduce_mean(model(x) ** 2)
    rule.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True))
    return loss

x = tf.ones((8192, 64))
before = peak_bytes()
step(x), step(x)
print((peak_bytes() - before) // 1024)
"""


def test_activations_of_one_micro_batch_at_a_time() -> None:
    """Of 8192 rows and 6 layers, activations and their gradients take 200 MB and more; of an eighth, an eighth."""
    whole, accumulated = (int(run_fresh(SCRIPT, count, timeout=120).split()[-1]) for count in ("1", "8"))
    assert whole > 200_000
    assert accumulated < 0.5 * whole


WHOLE_RESULTS = {
    "returned, in a split": lambda y: y,
    "the largest": lambda y: tf.math.top_k(tf.reshape(y, [-1]), 5),
    "which is the largest": lambda y: tf.argmax(tf.reshape(y, [-1])),
    "softmax over the batch": lambda y: tf.nn.softmax(y, axis=0),
    "sorted": lambda y: tf.sort(y[:, 0]),
}


@pytest.mark.parametrize("name", WHOLE_RESULTS)
def test_what_is_made_of_all_micro_batches_and_returned(name: str) -> None:
    """It is there after the last, and no micro-batch waits for it, or for what is cut of it."""
    results = []
    for scoped in (False, True):
        weight = tf.Variable(tf.random.stateless_normal((64, 64), (1, 1), dtype=tf.float64) * 0.1)

        def step(x, weight=weight, scoped=scoped):
            with wh.accumulate(3) if scoped else contextlib.nullcontext(), tf.GradientTape() as tape:
                with wh.split() if scoped and "split" in name else contextlib.nullcontext():
                    y = tf.nn.gelu(x @ weight)
                loss = tf.reduce_mean(tf.square(y - x))
            weight.assign_sub(tape.gradient(loss, weight))
            return loss, WHOLE_RESULTS[name](y)

        x = tf.random.stateless_normal((50, 64), (3, 4), dtype=tf.float64)
        made = (wh.function if scoped else tf.function)(step)(x)
        results.append([*map(np.asarray, tf.nest.flatten(made)), weight.numpy()])
    for ours, theirs in zip(results[1], results[0], strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-12)


def test_a_loss_of_what_is_made_of_all_micro_batches_is_refused() -> None:
    weight = tf.Variable(tf.eye(64))

    @wh.function
    def step(x):
        with wh.accumulate(3), tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.math.top_k(tf.reshape(tf.tanh(x @ weight), [-1]), 5)[0])
        weight.assign_sub(tape.gradient(loss, weight))
        return loss

    with pytest.raises(ValueError, match="runs for each micro-batch and needs TopKV2"):
        step(tf.ones((48, 64)))
