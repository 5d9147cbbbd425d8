"""Gradients through layouts that are pinned by hand in the plan: the true ones, with no factor of the parts.

`Plan` is data, so a test takes a step's plan, gives every op the candidate it wants, and runs the step with that. Each
op of the forward pass may be carried out in any of its legal ways; those of its backward pass too. Whatever boxing that
brings, gradients must be those of the closed form and of finite differences.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf

import whaleish as wh
from tests.boxing.pinning import pinned

W = np.random.default_rng(0).normal(size=(5, 6))
V = np.random.default_rng(1).normal(size=(6, 3))
X = np.random.default_rng(2).normal(size=(7, 5))
T = np.random.default_rng(3).normal(size=(7, 3))


def two_layers(x, t, w, v):
    """Loss and gradients of a two-layer net, arguments only."""
    with tf.GradientTape() as tape:
        tape.watch([w, v])
        hidden = tf.tanh(tf.matmul(x, w))
        loss = tf.reduce_mean(tf.square(tf.matmul(hidden, v) - t))
    return loss, *tape.gradient(loss, [w, v])


def closed_form() -> list[np.ndarray]:
    hidden = np.tanh(X @ W)
    error = hidden @ V - T
    out = 2 * error / error.size
    return [np.mean(error**2), X.T @ ((out @ V.T) * (1 - hidden**2)), hidden.T @ out]


def loss_at(w: np.ndarray, v: np.ndarray) -> float:
    return float(np.mean((np.tanh(X @ w) @ v - T) ** 2))


def test_the_closed_form_agrees_with_finite_differences() -> None:
    _, gradient_w, gradient_v = closed_form()
    for place in np.ndindex(W.shape):
        step = np.zeros_like(W)
        step[place] = 1e-6
        assert (loss_at(W + step, V) - loss_at(W - step, V)) / 2e-6 == pytest.approx(gradient_w[place], abs=1e-8)
    for place in np.ndindex(V.shape):
        step = np.zeros_like(V)
        step[place] = 1e-6
        assert (loss_at(W, V + step) - loss_at(W, V - step)) / 2e-6 == pytest.approx(gradient_v[place], abs=1e-8)


def check(seeds: range) -> set[str]:
    """Runs the net under random pinned layouts; returns the kinds of boxing that took place."""
    given = [tf.constant(a) for a in (X, T, W, V)]
    kinds: set[str] = set()
    for seed in seeds:
        plan, moves = pinned(wh.function(two_layers), given, random.Random(seed))
        kinds |= moves
        made = wh.function(two_layers, plan=plan)(*given)
        for got, expected in zip(made, closed_form(), strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-10, atol=1e-12, err_msg=f"seed {seed}\n{plan}")
    return kinds


ALL_KINDS = {"S>S", "S>B", "B>S", "P>B", "P>S", "B>P", "S>P"}


@pytest.mark.parametrize("world_of", [2, 3, 4], indirect=True)
def test_in_one_process(world_of: int) -> None:
    assert check(range(12)) >= ALL_KINDS


@pytest.mark.ranks
def test_on_real_ranks(ranks) -> None:
    first, second = ranks.run(check, range(12))
    assert first == second
    assert first >= ALL_KINDS


def weights_step() -> Callable[..., tf.Tensor]:
    variables = [tf.Variable(W), tf.Variable(V)]

    def step(x, t):
        loss, *gradients = two_layers(x, t, *variables)
        for variable, gradient in zip(variables, gradients, strict=True):
            variable.assign_sub(0.1 * gradient)
        return loss

    return step


@pytest.mark.parametrize("world_of", [2, 4], indirect=True)
def test_variables_in_any_layout(world_of: int) -> None:
    seen = set()
    for seed in range(12):
        step = weights_step()
        given = [tf.constant(X), tf.constant(T)]
        plan, _ = pinned(wh.function(step), given, random.Random(seed))
        compiled = wh.function(step, plan=plan)
        losses = [float(compiled(*given)) for _ in range(2)]
        seen |= {layout[0].kind for _, layout in plan.variables}
        loss, gradient_w, gradient_v = closed_form()
        w, v = W - 0.1 * gradient_w, V - 0.1 * gradient_v
        assert losses == pytest.approx([loss, loss_at(w, v)], rel=1e-10)
    assert {"S", "B"} <= seen
