"""Sharded variables after training steps on real ranks: whatever is done with them is right, or raises in time."""

from __future__ import annotations

import time
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

import whaleish as wh
from whaleish.state import storage

pytestmark = pytest.mark.ranks
X = np.random.default_rng(0).normal(size=(6, 4)).astype("float32")
Y = np.arange(6) % 8


def trained(scope=wh.split):
    """A model after two steps, its optimizer, the step, and the weights that one device would have."""
    found = []
    for around in (wh.auto, scope):
        keras.utils.set_random_seed(7)
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8)])
        optimizer = keras.optimizers.Adam(0.01)
        optimizer.build(model.trainable_variables)
        found.append((model, optimizer, stepper(model, optimizer, around)))
    (plain, _, alone), (model, optimizer, step) = found
    alone, compiled = tf.function(alone), wh.function(step)
    for _ in range(2):
        np.testing.assert_allclose(compiled(X, Y), alone(X, Y), rtol=1e-5)
    return model, optimizer, compiled, plain, alone


def stepper(model, optimizer, scope):
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def step(x, y):
        with tf.GradientTape() as tape, scope():
            loss = loss_of(y, model(x))
        weights = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return loss

    return step


def same(model, plain, **tolerance) -> None:
    for a, b in zip(model.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, **({"rtol": 1e-4, "atol": 1e-5} | tolerance))


def used_as_usual(folder: str) -> None:
    """What users do between steps, on all ranks."""
    model, optimizer, step, plain, alone = trained()
    kernel = model.weights[0]
    assert storage(kernel.value).layout[0].is_split
    assert "numpy=" in repr(kernel.value) or "value=" in repr(kernel)
    same(model, plain)
    np.testing.assert_allclose(model(X), plain(X), rtol=1e-4, atol=1e-5)
    # Assigning, between steps.
    for one in (model, plain):
        one.weights[0].assign(one.weights[0] * 2.0)
        one.weights[1].assign_add(np.ones(8))
    np.testing.assert_allclose(step(X, Y), alone(X, Y), rtol=1e-4)
    same(model, plain)
    # A checkpoint is one logical tensor, written by the chief, read by all.
    checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer)
    path = checkpoint.write(f"{folder}/rank{wh.rank()}/checkpoint")
    saved = model.get_weights()
    assert [shape for _, shape in tf.train.list_variables(path)].count([4, 8]) >= 3  # the kernel and its two slots
    losses = [float(step(X, Y)) for _ in range(2)]
    checkpoint.read(path).assert_existing_objects_matched()
    np.testing.assert_array_equal(model.get_weights()[0], saved[0])
    assert [float(step(X, Y)) for _ in range(2)] == pytest.approx(losses, rel=1e-6)
    # Keras's file, into a model that is whole.
    weights = f"{folder}/rank{wh.rank()}.weights.h5"
    model.save_weights(weights)
    plain.load_weights(weights)
    same(model, plain, rtol=0, atol=0)


def test_between_steps(ranks, tmp_path: Path) -> None:
    for rank in (0, 1):
        (tmp_path / f"rank{rank}").mkdir()
    ranks.run(used_as_usual, str(tmp_path), timeout=60)


def timed(call) -> tuple[float, str]:
    start = time.monotonic()
    try:
        call()
    except Exception as error:
        return time.monotonic() - start, f"{type(error).__name__}: {error}"
    return time.monotonic() - start, ""


def read_alone() -> list[tuple[float, str]]:
    """Rank 0 prints a sharded weight while the other has gone on to its next step; then both go on."""
    model, _, step, plain, alone = trained()
    lone = timed(lambda: print(model.weights[0].numpy())) if wh.rank() == 0 else (0.0, "")
    after = timed(lambda: np.testing.assert_allclose(step(X, Y), alone(X, Y), rtol=1e-4))
    together = timed(
        lambda: np.testing.assert_allclose(wh.gather(model.weights[0]), plain.weights[0].numpy(), rtol=1e-4)
    )
    return [lone, after, together]


def test_a_read_by_rank_0_alone(ranks) -> None:
    (lone, *rest), (_, *others) = ranks.run(read_alone, timeout=60)
    assert lone[0] < 10
    assert lone[1].startswith("AbsentError")
    assert "wh.gather" in lone[1]
    assert [message for _, message in (*rest, *others)] == [""] * 4


def helpers() -> list[tuple[float, str]]:
    """Helper functions that read a variable, traced before, during and after the capture, called on all ranks."""
    found = []
    for scope in (wh.replica, wh.split):
        w = tf.Variable(tf.ones([4, 8]), name="kernel")
        before = tf.function(lambda x, w=w: tf.reduce_sum(tf.matmul(x, w)))
        during = tf.function(lambda x, w=w: tf.reduce_sum(tf.matmul(x, w)))
        before(X)

        @wh.function
        def step(x, w=w, before=before, during=during, scope=scope):
            with scope():
                loss = before(x) + during(x) + tf.reduce_sum(tf.matmul(x, w))
            w.assign(w * 2)
            return loss

        for turn in range(2):
            assert float(step(X)) == pytest.approx(3 * 8 * 2**turn * X.sum(), rel=1e-4)
        after = tf.function(lambda x, w=w: tf.reduce_sum(tf.matmul(x, w)))
        for helper in (before, during, after):
            found.append(timed(lambda helper=helper: check_close(float(helper(X)), 32 * X.sum())))
        assert float(tf.reduce_sum(w)) == 4 * 32
    return found


def check_close(got: float, expected: float) -> None:
    assert got == pytest.approx(expected, rel=1e-4), f"silently wrong: {got}"


def test_helper_functions(ranks) -> None:
    for results in ranks.run(helpers, timeout=60):
        assert [message for _, message in results[:3]] == [""] * 3
        for seconds, message in results[3:]:  # sharded: right, or an error that names the variable
            assert seconds < 10
            assert "silently wrong" not in message
            assert message == "" or "kernel" in message, message
