"""Ranks that do not do the same (horovod#1559, #336): every rank raises in time and names the first difference."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import whaleish as wh
from tests.cluster.harness import run_script

pytestmark = pytest.mark.ranks


def attempt(call: Callable[[], Any]) -> tuple[float, str]:
    """Seconds that a call took, and what it raised."""
    start = time.monotonic()
    try:
        call()
    except Exception as error:
        return time.monotonic() - start, f"{type(error).__name__}: {error}"
    return time.monotonic() - start, ""


def trained(layers: list[int], scope=wh.replica, extra: bool = False) -> Callable[[tf.Tensor], tf.Tensor]:
    model = keras.Sequential([keras.layers.Dense(units, activation="relu") for units in layers])
    model.build((None, 4))
    optimizer = keras.optimizers.SGD(0.1)
    optimizer.build(model.trainable_variables)

    @wh.function
    def step(x):
        with tf.GradientTape() as tape, scope():
            loss = tf.reduce_mean(tf.square(model(x)))
            if extra:
                loss += 0.5 * tf.reduce_sum(tf.abs(model.trainable_variables[0]))
        optimizer.apply_gradients(
            zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True)
        )
        return loss

    return step


def other_layer(rank: int) -> tuple[float, str]:
    return attempt(lambda: trained([8, 4 + 2 * rank])(tf.ones([6, 4])))


def one_more_layer(rank: int) -> tuple[float, str]:
    return attempt(lambda: trained([8, 4] + [4] * rank)(tf.ones([6, 4])))


def other_scope(rank: int) -> tuple[float, str]:
    return attempt(lambda: trained([8, 4], wh.split if rank else wh.replica)(tf.ones([6, 4])))


def side_effect(rank: int) -> tuple[float, str]:
    return attempt(lambda: trained([8, 4], extra=bool(rank))(tf.ones([6, 4])))


def other_shape(rank: int) -> tuple[float, str]:
    return attempt(lambda: trained([8, 4])(tf.ones([6 + 2 * rank, 4])))


def other_type(rank: int) -> tuple[float, str]:
    double = tf.function(lambda x: tf.reduce_sum(x), autograph=False)
    return attempt(lambda: wh.function(double)(tf.ones([6, 4], "float64" if rank else "float32")))


def other_step(rank: int) -> tuple[float, str]:
    def first(x):
        return tf.reduce_sum(x)

    def second(x):
        return tf.reduce_sum(x)

    return attempt(lambda: wh.function(second if rank else first)(tf.ones([6, 4])))


CASES = {
    other_layer: ["what the step 'step' does", "rank 0:", "rank 1:", "4]", "6]"],
    one_more_layer: ["what the step 'step' does", "rank 0:", "rank 1:"],
    other_scope: ["what the step 'step' does", "rank 0:", "rank 1:", "replica", "split"],
    side_effect: [
        "what the step 'step' does",
        "rank 0:",
        "rank 1:",
        "On this rank that is",
        "test_disagreement.py:",
    ],
    other_shape: ["the call of 'step'", "rank 0: argument 0: float32[6, 4]", "rank 1: argument 0: float32[8, 4]"],
    other_type: ["rank 0:", "float32[6, 4]", "rank 1:", "float64[6, 4]"],
    other_step: ["rank 0: the call of 'first'", "rank 1: the call of 'second'"],
}


def disagree(case: Callable[[int], tuple[float, str]]) -> tuple[float, str, float]:
    """A case, and afterwards a step on which the ranks agree."""
    found = case(wh.rank())
    keras.utils.clear_session()  # layers are numbered anew, the same on both ranks
    return *found, float(trained([3, 2])(tf.zeros([6, 4])))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_at_the_first_call(ranks, case) -> None:
    for seconds, message, afterwards in ranks.run(disagree, case, timeout=45):
        assert seconds < 15
        assert message.startswith("DisagreementError: "), message
        for part in CASES[case]:
            assert part in message, message
        assert afterwards == 0


def third_call() -> list[tuple[float, str]]:
    """Both have run the step twice; then rank 1 comes with another shape, for which it has no program."""
    step = trained([8, 4])
    for _ in range(2):
        step(tf.ones([6, 4]))
    found = [attempt(lambda: step(tf.ones([6 + 2 * wh.rank(), 4])))]
    # And back: the compiled program still runs.
    return [*found, attempt(lambda: step(tf.ones([6, 4])))]


def test_at_the_third_call(ranks) -> None:
    for (seconds, message), again in ranks.run(third_call, timeout=45):
        assert seconds < 15
        for part in ("DisagreementError", "rank 0: argument 0: float32[6, 4]", "rank 1: argument 0: float32[8, 4]"):
            assert part in message
        assert again[1] == ""


def other_batches() -> list[tuple[float, str]]:
    @wh.function
    def step(x, y):
        return tf.reduce_sum(x) + tf.reduce_sum(y)

    rng = np.random.default_rng(wh.rank())
    same = tf.ones([6, 4])
    found = [attempt(lambda: step(same, tf.constant(rng.normal(size=6).astype("float32"))))]
    found.append(attempt(lambda: step(same, tf.zeros([6]))))
    # The same rows in another order are another batch, too.
    order = tf.constant([0.0, 1, 2, 3, 4, 5] if wh.rank() else [1.0, 0, 2, 3, 4, 5])
    return [*found, attempt(lambda: step(same, order))]


def test_batches_that_differ_under_global_inputs(ranks) -> None:
    for first, good, order in ranks.run(other_batches, timeout=45):
        for seconds, message in (first, order):
            assert seconds < 15
            assert "DisagreementError: ranks passed different batches" in message
            assert "inputs='local'" in message
        assert good[1] == ""


def refused() -> list[float]:
    """A refused step has no effect, be it one that needs no other rank: a counter, a part of a weight."""
    count, w = tf.Variable(0.0), tf.Variable(tf.ones([4, 8]))

    @wh.function
    def step(x):
        with wh.split():
            y = tf.matmul(x, w)
        count.assign_add(1.0)
        w.assign_add(tf.ones([4, 8]))
        return tf.reduce_sum(y)

    step(tf.ones([6, 4]))
    found = [attempt(lambda: step(tf.fill([6, 4], float(1 + wh.rank()))))]
    assert "different batches" in found[0][1]
    return [float(count), float(wh.gather(w)[0, 0])]


def test_a_refused_step_changes_nothing(ranks) -> None:
    assert ranks.run(refused, timeout=45) == [[1.0, 2.0]] * 2


def test_the_launcher_ends_with_an_error() -> None:
    done = run_script(
        2,
        """
import tensorflow as tf, whaleish as wh
wh.init()
w = tf.Variable(tf.ones([4, 3 + wh.rank()]), name="kernel")
@wh.function
def step(x):
    return tf.reduce_sum(tf.matmul(x, w))
print("loss", step(tf.ones([6, 4])))
""",
        timeout=100,
    )
    assert not done.timed_out
    assert done.status != 0
    assert done.survivors == ()
    assert "ranks differ in what the step 'step' does" in done.output
    assert "loss" not in done.output.replace('print("loss"', "")
