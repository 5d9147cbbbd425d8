"""Variables that the program assigns between steps: equal on all ranks, or every rank says which is not."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import whaleish as wh
from whaleish.state import storage

pytestmark = pytest.mark.ranks
X = np.arange(24, dtype="float32").reshape(6, 4) / 24


class Training:
    """A linear model with a step, and the same on one device."""

    def __init__(self, scope=wh.replica) -> None:
        self.kernel = tf.Variable(tf.ones([4, 8]), name="kernel")
        self.rate = tf.Variable(0.1, name="rate")
        self.plain = [tf.Variable(tf.ones([4, 8])), tf.Variable(0.1)]

        def step(kernel: tf.Variable, rate: tf.Variable, x: tf.Tensor, around: Any = wh.auto) -> tf.Tensor:
            with tf.GradientTape() as tape, around():
                loss = tf.reduce_mean(tf.square(tf.matmul(x, kernel)))
            kernel.assign_sub(rate * tape.gradient(loss, kernel))
            return loss

        self.step = wh.function(lambda x: step(self.kernel, self.rate, x, scope))
        self.step.__name__ = "step"
        self.alone = tf.function(lambda x: step(*self.plain, x))
        self.same()

    def same(self) -> None:
        np.testing.assert_allclose(self.step(X), self.alone(X), rtol=1e-5)
        np.testing.assert_allclose(wh.gather(self.kernel), self.plain[0].numpy(), rtol=1e-5)

    def failure(self) -> str:
        """What a step raises, with the seconds it took checked."""
        start = time.monotonic()
        with pytest.raises(wh.DisagreementError) as raised:
            self.step(X)
        assert time.monotonic() - start < 15
        return str(raised.value)


def on_rank_0_alone(way: str, folder: str) -> str:
    training = Training(wh.split if way.startswith("split") else wh.replica)
    kernel, plain = training.kernel, training.plain[0]
    checkpoint = tf.train.Checkpoint(kernel=kernel)
    path = checkpoint.write(f"{folder}/rank{wh.rank()}/checkpoint") if way == "restore" else ""
    change = {
        "assign": lambda v: v.assign(tf.fill([4, 8], 2.0)),
        "assign_sub": lambda v: v.assign_sub(tf.ones([4, 8])),
        "scatter": lambda v: v.scatter_nd_update([[1]], tf.zeros([1, 8])),
        "slice": lambda v: v[1:3].assign(tf.zeros([2, 8])),
        "restore": lambda v: checkpoint.read(path) if v is kernel else None,
        "split": lambda v: v.assign(tf.fill([4, 8], 2.0)),
        "split_add": lambda v: v.assign_add(tf.ones([4, 8])),
    }[way]
    if wh.rank() == 0:
        change(kernel)
    message = training.failure()
    if wh.rank() == 1:  # now both have done the same, and go on
        change(kernel)
    change(plain)
    training.same()
    return message


WAYS = ["assign", "assign_sub", "scatter", "slice", "restore", "split", "split_add"]


@pytest.mark.parametrize("way", WAYS)
def test_on_one_rank_alone(ranks, tmp_path: Path, way: str) -> None:
    for rank in (0, 1):
        (tmp_path / f"rank{rank}").mkdir()
    for message in ranks.run(on_rank_0_alone, way, str(tmp_path), timeout=60):
        assert "what the program assigned to variables before this call of the step 'step'" in message
        assert "rank 0: kernel: assigned" in message
        assert "rank 1: kernel: not assigned" in message


def on_one_rank_and_then_on_all(scope) -> None:
    training = Training(scope)
    if wh.rank() == 1:
        training.kernel.assign(tf.fill([4, 8], 7.0))
    training.failure()
    for variable in (training.kernel, training.plain[0]):
        variable.assign(tf.fill([4, 8], 2.0))
    training.same()


@pytest.mark.parametrize("scope", [wh.replica, wh.split])
def test_what_all_ranks_assign_settles_it(ranks, scope) -> None:
    ranks.run(on_one_rank_and_then_on_all, scope, timeout=60)


def other_values(scope) -> str:
    training = Training(scope)
    training.kernel.assign(tf.fill([4, 8], 2.0 + wh.rank()))
    training.plain[0].assign(tf.fill([4, 8], 2.0))
    if scope is wh.split:
        assert storage(training.kernel).layout[0].is_split
        return training.failure()
    training.same()  # rank 0's
    return ""


def test_other_values_on_each_rank(ranks) -> None:
    """A whole variable gets rank 0's, as it does before its first step. Of one in parts no rank has all to give."""
    assert ranks.run(other_values, wh.replica, timeout=60) == ["", ""]
    for message in ranks.run(other_values, wh.split, timeout=60):
        assert "kernel: assigned, in parts, values #" in message


def a_schedule() -> None:
    training = Training()
    for turn in range(3):
        for rate in (training.rate, training.plain[1]):
            rate.assign(0.1 / (turn + 1))
        training.same()
    # What the step does not use is not its affair.
    stranger = tf.Variable(1.0)
    if wh.rank() == 0:
        stranger.assign(2.0)
    training.same()


def test_the_same_on_all_ranks(ranks) -> None:
    ranks.run(a_schedule, timeout=60)


def before_the_first_step() -> None:
    layer = keras.layers.Dense(3, kernel_initializer="ones")
    layer.build((None, 4))
    if wh.rank() == 0:
        layer.kernel.assign(2 * tf.ones([4, 3]))
    step = wh.function(lambda x: tf.reduce_sum(layer(x)))
    for _ in range(2):
        assert float(step(X)) == pytest.approx(6 * X.sum(), rel=1e-5)


def test_before_the_first_step_rank_0_decides(ranks) -> None:
    ranks.run(before_the_first_step, timeout=60)
