"""Expert parallelism from layouts alone: a top-2 mixture of experts whose experts are sharded, in groups of tokens."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import whaleish as wh
from whaleish.planner.moves import find_moves
from whaleish.rewrite.expand import expand
from whaleish.sbp import S

GROUPS, TOKENS, EXPERTS, CAPACITY, WIDTH, HIDDEN = 4, 6, 4, 4, 8, 16


class Mixture:
    """Gates, two experts for each token with a limited number of places, and the experts' layers."""

    def __init__(self, stated: bool) -> None:
        def weight(seed: int, *shape: int) -> tf.Variable:
            return tf.Variable(0.3 * tf.random.stateless_normal(shape, [seed, 0], dtype=tf.float64))

        self.gates = weight(1, WIDTH, EXPERTS)
        self.up, self.down = weight(2, EXPERTS, WIDTH, HIDDEN), weight(3, EXPERTS, HIDDEN, WIDTH)
        self.variables = [self.gates, self.up, self.down]
        self.stated = stated
        if stated:
            wh.layout(self.up, "S(0)")
            wh.layout(self.down, "S(0)")

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        """[groups, tokens, width] to the same."""
        gates = tf.nn.softmax(tf.einsum("gtd,de->gte", x, self.gates))
        dispatch, combine = [], []
        taken = tf.zeros([GROUPS, 1, EXPERTS], tf.float64)
        for choice in range(2):
            best = tf.one_hot(tf.argmax(gates - (1e9 * dispatch[0] if choice else 0.0), -1), EXPERTS, dtype=tf.float64)
            place = tf.cumsum(best, 1, exclusive=True) * best + taken * best
            taken += tf.reduce_sum(best, 1, keepdims=True)
            fits = best * tf.cast(place < CAPACITY, tf.float64)
            slots = fits[..., None] * tf.one_hot(tf.cast(place, tf.int32), CAPACITY, dtype=tf.float64)
            dispatch.append(best)
            combine.append(slots * tf.reduce_sum(gates * best, -1)[..., None, None])
        weights = combine[0] + combine[1]  # group, token, expert, place
        sent = tf.einsum("gtec,gtd->egcd", tf.cast(weights > 0, tf.float64), x)
        if self.stated:
            sent = wh.layout(sent, "S(0)")
        hidden = tf.nn.relu(tf.einsum("egcd,edh->egch", sent, self.up))
        made = tf.einsum("egch,ehd->egcd", hidden, self.down)
        return tf.einsum("gtec,egcd->gtd", weights, made)


def train(stated: bool, steps: int):
    """Losses, weights, and the step."""
    layer = Mixture(stated)

    def step(x):
        with tf.GradientTape() as tape, wh.replica() if stated else wh.auto():
            loss = tf.reduce_mean(tf.square(layer(x) - x))
        for variable, gradient in zip(layer.variables, tape.gradient(loss, layer.variables), strict=True):
            variable.assign_sub(0.5 * gradient)
        return loss

    compiled = wh.function(step) if stated else tf.function(step)
    rng = np.random.default_rng(0)
    batches = [tf.constant(rng.normal(size=(GROUPS, TOKENS, WIDTH))) for _ in range(steps)]
    losses = [float(compiled(x)) for x in batches]
    return losses, [wh.gather(v) if stated else v.numpy() for v in layer.variables], compiled, batches[0]


def check() -> None:
    expected, weights, _, _ = train(False, 4)
    losses, spread, compiled, x = train(True, 4)
    np.testing.assert_allclose(losses, expected, rtol=1e-9)
    for a, b in zip(spread, weights, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)
    program = compiled.program_for(x)
    graph, plan = expand(program.capture.graph, program.plan)
    parts = plan.mesh.size
    # What goes to the experts and comes back, forward and backward, is exchanged: nobody gathers it.
    exchanged = [m for m in find_moves(graph, plan).values() if m.source[0].is_split and m.target[0].is_split]
    slots = EXPERTS * GROUPS * CAPACITY * WIDTH * 8
    assert {(m.source[0], m.target[0]) for m in exchanged} >= {(S(1), S(0)), (S(0), S(1))}
    for move in exchanged:
        assert move.nbytes <= slots * (parts - 1) / parts
    largest = max(m.nbytes for m in find_moves(graph, plan).values() if m not in exchanged)
    assert largest < slots, "tokens are gathered"
    for share in program.shares():
        assert share.flops <= share.step_flops * (1 / parts + 0.05)


@pytest.mark.parametrize("world_of", [2, 4], indirect=True)
def test_in_one_process(world_of: int) -> None:
    check()


@pytest.mark.ranks
def test_on_real_ranks(ranks) -> None:
    ranks.run(check, timeout=60)
