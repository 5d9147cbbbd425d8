"""Embedding tables: gradients travel as rows where that is cheaper, and are those of one device."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import whaleish as wh
from tests.boxing.pinning import pinned_plan
from tests.products import either, pairwise
from tests.transparency.precision import computing_in
from whaleish.capture import capture
from whaleish.mesh import Axis, Mesh
from whaleish.program import Program
from whaleish.report.explain import moved
from whaleish.rewrite.expand import expand
from whaleish.rules.rows import MERGE_ROWS
from whaleish.state import storage
from whaleish.world import world

ROWS, WIDTH, BATCH = 4000, 8, 24
TABLE_BYTES = ROWS * WIDTH * 8
OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.1),
    "momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    "adam": lambda: keras.optimizers.Adam(0.01),
}
SCOPES = {"replica": wh.replica, "split": wh.split}
CASES = pairwise(optimizer=list(OPTIMIZERS), scope=list(SCOPES), stated=["", "S(0)", "S(1)"], batch=[24, 10])


def make(optimizer: str, around, stated: str):
    """A table, and a step that trains it and a head."""
    keras.utils.set_random_seed(2)
    table, head = keras.layers.Embedding(ROWS, WIDTH), keras.layers.Dense(3)
    table.build()
    head.build((None, WIDTH))
    if stated:
        wh.layout(table.embeddings, stated)
    rule, variables = OPTIMIZERS[optimizer](), [*table.trainable_variables, *head.trainable_variables]
    rule.build(variables)

    def step(ids, y):
        with tf.GradientTape() as tape, around():
            loss = tf.reduce_mean(tf.square(head(table(ids)) - y))
        rule.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    return table, step


def train(optimizer: str, scope: str, stated: str, batch: int) -> tuple[float, float, float, str]:
    """Differences of losses and tables from one device, the bytes sent in a step, and the table's layout."""
    with computing_in("float64"):
        plain, step = make(optimizer, wh.auto, "")
        alone = tf.function(step)
        table, step = make(optimizer, SCOPES[scope], stated)
        compiled = wh.function(step)
        rng, losses = np.random.default_rng(0), 0.0
        for _ in range(4):
            # Frequent ids are in every part's rows, and several times.
            given = tf.constant(rng.zipf(1.3, batch) % ROWS), tf.constant(rng.normal(size=(batch, 3)))
            expected, got = float(alone(*given)), float(compiled(*given))
            losses = max(losses, abs(expected - got) / expected)
        program = compiled.program_for(*given)
        moves = moved(*expand(program.capture.graph, program.plan))
        difference = float(np.abs(wh.gather(table.embeddings) - plain.embeddings.numpy()).max())
        return losses, difference, sum(move.nbytes for move in moves), str(storage(table.embeddings.value).layout)


def check(found: tuple[float, float, float, str], stated: str, size: int) -> None:
    losses, difference, sent, layout = found
    assert losses < 1e-9
    assert difference < 1e-9
    assert sent < (size - 1) * TABLE_BYTES / 10, "the gradient travels as a whole table"
    assert not stated or stated in layout


@pytest.mark.parametrize("world_of", [4], indirect=True)
@pytest.mark.parametrize(*CASES)
def test_in_one_process(world_of: int, optimizer: str, scope: str, stated: str, batch: int) -> None:
    check(train(optimizer, scope, stated, batch), stated, world_of)


@pytest.mark.ranks
@pytest.mark.parametrize("ranks", [2, 4], indirect=True)
@pytest.mark.parametrize(
    CASES[0].split(","), either([("sgd", "replica", "", 10), ("adam", "split", "S(0)", 24)], CASES[1])
)
def test_on_real_ranks(ranks, optimizer: str, scope: str, stated: str, batch: int) -> None:
    for found in ranks.run(train, optimizer, scope, stated, batch, timeout=60):
        check(found, stated, ranks.size)


@pytest.mark.parametrize("world_of", [2], indirect=True)
def test_merged_rows_that_are_cut_again(world_of: int) -> None:
    """Gathered for one reader, and then read as each part's own: whatever a plan says is carried out."""

    def step(ids, rows):
        return tf.math.unsorted_segment_sum(rows, ids, 5)

    given = tf.constant([1, 4, 1, 0, 1, 3, 4]), tf.constant(np.random.default_rng(0).normal(size=(7, 3)))
    captured = capture(step, *given)

    def choose(index, options):
        split = [c for c in options if any(sbp.is_split for sbp in c.inputs)]
        if captured.graph.ops[index].type == MERGE_ROWS:
            return next(c for c in split if not any(sbp.is_split for sbp in c.outputs))
        return next((c for c in split if any(sbp.is_partial for sbp in c.outputs)), options[0])

    plan = pinned_plan(captured.graph, Mesh((Axis("d", 2),)), choose)
    assert any("S(0) S(0) -> B B" in str(choice) for choice in plan.choices)
    assert any("-> P" in str(choice) for choice in plan.choices)
    np.testing.assert_allclose(Program(captured, plan, world())(given), step(*given))
