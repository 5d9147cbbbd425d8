"""Random loops: what goes round, and what it is made of, drawn; results and gradients equal one device.

Values that go round begin as rows of the batch, zeros or ones, and are sums over the batch, products with a weight or
mixtures of each other. The second batch is smaller, when the weights lie as the first made them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, given, settings

import whaleish as wh
from tests.products import all_cases
from tests.programs.program import fresh
from tests.transparency.zoo import nested

WIDTH = 4
STEPS: dict[str, Callable[..., tf.Tensor]] = {
    "tanh": lambda v, other, x, u: tf.tanh(v),
    "product": lambda v, other, x, u: v @ u,
    "product back": lambda v, other, x, u: tf.matmul(v, u, transpose_b=True),
    "sum": lambda v, other, x, u: v + _like(other, v),
    "half": lambda v, other, x, u: 0.5 * v,
    "centred": lambda v, other, x, u: v - tf.reduce_mean(v, 1, keepdims=True),
    "over the batch": lambda v, other, x, u: tf.reduce_sum(tf.tanh(v[:1] + 1.0) * x, 0, keepdims=True) + 0 * v,
    "mean of the batch": lambda v, other, x, u: tf.reduce_mean(x, 0, keepdims=True) + 0 * v,
    "attention": lambda v, other, x, u: tf.nn.softmax(tf.matmul(v, x, transpose_b=True)) @ x,
    "largest": lambda v, other, x, u: tf.reduce_max(x, 0, keepdims=True) - v,
    "chosen": lambda v, other, x, u: tf.where(v > 0.0123, _like(other, v), v),
    "scaled": lambda v, other, x, u: v / (1.0 + tf.reduce_sum(other * other)),
}
BEGINS: dict[str, Callable[[tf.Tensor], tf.Tensor]] = {
    "rows": lambda x: 0.3 * x,
    "zeros": tf.zeros_like,
    "zero row": lambda x: tf.zeros_like(x[:1]),
    "first row": lambda x: x[:1] + 0.1,
    "constant": lambda x: tf.constant(fresh(2, 1, WIDTH)),
}
SCOPES: dict[str, tuple[Callable[[], Any], list[str]]] = {
    "none": (contextlib.nullcontext, ["", "S(0)", "S(1)"]),
    "split": (wh.split, ["", "S(0)"]),
    "replica x split": (lambda: nested(wh.replica(2), wh.split()), ["", "B,S(0)", "S(1),B"]),
}


def _like(other: tf.Tensor, v: tf.Tensor) -> tf.Tensor:
    """A value in the shape of another, of which the first row counts where it has more."""
    return other[:1] + 0 * v if other.shape[0] != v.shape[0] else other


@st.composite
def loops(draw: st.DrawFn) -> dict[str, Any]:
    count = draw(st.integers(1, 3))
    steps = st.lists(st.tuples(st.sampled_from(list(STEPS)), st.integers(0, 5)), min_size=1, max_size=4)
    scope = draw(st.sampled_from(list(SCOPES)))
    return {
        "begins": [draw(st.sampled_from(list(BEGINS))) for _ in range(count)],
        "bodies": [draw(steps) for _ in range(count)],
        "kind": draw(st.sampled_from(["while", "nested", "sometimes"])),
        "scope": scope,
        "layout": draw(st.sampled_from(SCOPES[scope][1])),
        "rows": draw(st.sampled_from([8, 5, 4])),
        "rows later": draw(st.sampled_from([1, 3, 8])),
    }


def step_of(drawn: dict[str, Any], around: Callable[[], Any], weight: tf.Variable) -> Callable[[tf.Tensor], Any]:
    def body(values: Sequence[tf.Tensor], x: tf.Tensor) -> list[tf.Tensor]:
        made = []
        for value, steps in zip(values, drawn["bodies"], strict=True):
            for name, other in steps:
                value = STEPS[name](value, values[other % len(values)], x, weight)
            made.append(value)
        return made

    def loop(times: Any, values: Sequence[tf.Tensor], inner: Callable[..., list[tf.Tensor]]) -> list[tf.Tensor]:
        return tf.while_loop(lambda i, *v: i < times, lambda i, *v: [i + 1, *inner(i, v)], [0, *values])[1:]

    def step(x: tf.Tensor) -> Any:
        inside = {
            "while": lambda i, v: body(v, x),
            "nested": lambda i, v: loop(i + 1, v, lambda _, w: body(w, x)),
            "sometimes": lambda i, v: tf.cond(i % 2 == 0, lambda: body(v, x), lambda: list(v)),
        }[drawn["kind"]]
        with tf.GradientTape() as tape:
            tape.watch(x)
            with around():
                values = loop(2, [BEGINS[name](x) for name in drawn["begins"]], inside)
                loss = tf.add_n([tf.reduce_sum(tf.sin(value)) for value in values])
        gradients = tape.gradient(loss, [weight, x])
        if gradients[0] is not None:
            weight.assign_sub(0.01 * gradients[0])
        return loss, list(values), [gradient for gradient in gradients if gradient is not None]

    return step


def check(drawn: dict[str, Any]) -> None:
    scope, _ = SCOPES[drawn["scope"]]
    plain, weight = (tf.Variable(0.5 * fresh(1, WIDTH, WIDTH)) for _ in range(2))
    if drawn["layout"]:
        wh.layout(weight, drawn["layout"])
    alone = tf.function(step_of(drawn, contextlib.nullcontext, plain))
    compiled = wh.function(step_of(drawn, scope, weight))
    for call, rows in enumerate((drawn["rows"], drawn["rows later"])):
        x = tf.constant(fresh(3 + call, rows, WIDTH))
        pairs = zip(tf.nest.flatten(compiled(x)), tf.nest.flatten(alone(x)), strict=True)
        for ours, theirs in pairs:
            np.testing.assert_allclose(ours, theirs, rtol=1e-8, atol=1e-8, err_msg=str(drawn))
    np.testing.assert_allclose(weight.numpy(), plain.numpy(), rtol=1e-8, atol=1e-8, err_msg=str(drawn))


@pytest.mark.timeout(1800)
def test_random_loops() -> None:
    """On four devices."""

    @settings(
        max_examples=200 if all_cases() else 15,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(loops())
    def run(drawn: dict[str, Any]) -> None:
        check(drawn)

    run()


@pytest.mark.parametrize("world_of", [2], indirect=True)
def test_a_sum_over_the_batch_that_begins_with_zeros(world_of: int) -> None:
    """The sum may stay partial inside the loop only if it does so all the way round."""

    def sums(x: tf.Tensor) -> tf.Tensor:
        h = tf.zeros([WIDTH], tf.float64)
        for _ in tf.range(3):
            h = tf.reduce_sum(tf.tanh(h + 1.0) * x, 0)
        return h

    def regression(x: tf.Tensor) -> tf.Tensor:
        w = tf.zeros([WIDTH, 1], tf.float64)
        for _ in tf.range(5):
            w += 0.1 * tf.matmul(x, x[:, :1] - tf.sigmoid(x @ w), transpose_a=True)
        return w

    def power(x: tf.Tensor) -> tf.Tensor:
        v = tf.ones([WIDTH], tf.float64)
        for _ in tf.range(4):
            v = tf.linalg.matvec(x, tf.linalg.matvec(x, v / tf.norm(v)), transpose_a=True)
        return v

    x = tf.constant(fresh(1, 8, WIDTH))
    for step in (sums, regression, power):
        np.testing.assert_allclose(wh.function(step)(x), tf.function(step)(x), rtol=1e-9)
