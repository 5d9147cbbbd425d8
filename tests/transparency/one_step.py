"""One training step of a model on several devices against the same on one, and whether the work was divided."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import keras
import numpy as np
import pytest
import tensorflow as tf

import whaleish as wh
from tests.transparency.precision import computing_in
from tests.transparency.zoo import nested
from whaleish.report.explain import without_rule
from whaleish.rewrite.expand import expand

CLASSES, TOKENS, BATCH = 6, 30, 12
MESHES = {"2x2": (4, lambda: nested(wh.replica(2), wh.split())), "3": (3, wh.replica), "split 3": (3, wh.split)}
"""Name -> devices, and the scopes to run the model in."""


def check(build: Callable[[], keras.Model], mesh: str) -> None:
    """Compares loss and all variables in float64; no op may lack a rule, and no device may do much more than its part.

    Args:
      build: makes a model of one input, images or tokens below `TOKENS`, that gives logits [batch, at least CLASSES].
    """
    with computing_in("float64"):
        _check(build, *reversed(MESHES[mesh]))


def on(cases: Iterable[tuple[str, str]]) -> list[tuple[str, str, int]]:
    """(model, mesh) with the number of devices of the mesh, for the fixture `world_of`."""
    return [(model, mesh, MESHES[mesh][0]) for model, mesh in cases]


def _make(build: Callable[[], keras.Model], around):
    keras.utils.set_random_seed(7)
    model = build()
    rule = keras.optimizers.SGD(1e-3, momentum=0.9)
    rule.build(model.trainable_variables)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def step(x, y):
        with tf.GradientTape() as tape, around():
            loss = loss_of(y, model(x, training=True))
        weights = model.trainable_variables
        rule.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return loss

    return model, step


def _check(build: Callable[[], keras.Model], around, size: int) -> None:
    plain, step = _make(build, wh.auto)
    alone = tf.function(step)
    model, step = _make(build, around)
    compiled = wh.function(step)
    rng, (_, *shape) = np.random.default_rng(1), plain.input_shape
    integers = plain.inputs[0].dtype == "int32"
    x = rng.integers(0, TOKENS, (BATCH, *shape)).astype("int32") if integers else rng.normal(size=(BATCH, *shape))
    given = tf.constant(x), tf.constant(rng.integers(0, CLASSES, BATCH))
    assert float(compiled(*given)) == pytest.approx(float(alone(*given)), rel=1e-9)
    for a, b in zip(model.variables, plain.variables, strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-6, atol=1e-9, err_msg=b.path)
    program = compiled.program_for(*given)
    graph, _ = expand(program.capture.graph, program.plan)
    assert [graph.ops[index].type for index in without_rule(graph)] == []
    done = [share.flops / share.step_flops for share in program.shares()]
    assert max(done) <= 1 / size + 0.05, done
