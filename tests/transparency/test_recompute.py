"""Recomputation changes nothing but what is kept: not a bit, as long as TensorFlow runs the ops as they are written."""

from __future__ import annotations

import contextlib
import itertools
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.eager import context

import whaleish as wh
from tests.fresh import run_fresh
from tests.products import either
from tests.transparency.recomputing import (
    BATCH,
    FEW_WITH_WAYS,
    LENGTH,
    NETS,
    WAYS,
    WIDTH,
    Outcome,
    as_written,
    compare,
    make,
)
from whaleish.planner.moves import find_moves
from whaleish.rewrite.expand import expand

FEW = [*FEW_WITH_WAYS, ("batch_norm", "replica")]


@pytest.mark.parametrize(("net", "way"), either(FEW, itertools.product(NETS, WAYS)))
def test_same_as_without(net: str, way: str) -> None:
    with as_written():
        found = compare(net, way)
    assert found.losses == 0
    assert found.weights == 0
    assert found.repeated > 10


@pytest.mark.parametrize("world_of", [1], indirect=True)
def test_on_one_device(world_of: int) -> None:
    with as_written():
        found = compare("nested", "plain")
    assert (found.losses, found.weights) == (0, 0)


@pytest.mark.ranks
@pytest.mark.parametrize("ranks", [2], indirect=True)
def test_on_real_ranks(ranks) -> None:
    for outcomes in ranks.run(_on_rank, timeout=200):
        for found in outcomes:
            assert found.losses == 0
            assert found.weights == 0
            assert found.repeated > 10


def _on_rank() -> list[Outcome]:
    import whaleish
    from tests.transparency.recomputing import as_written, compare

    whaleish.init()
    with as_written():
        return [compare("batch_norm", "replica"), compare("nested", "split"), compare("layer_norm", "pipeline")]


@pytest.mark.parametrize("way", ["replica", "split"])
def test_only_what_the_forward_sends_is_sent_again(way: str) -> None:
    """What came into a segment in another layout is kept in it, and small sums, as of statistics, are kept."""
    sent = []
    for segment in (contextlib.nullcontext, wh.recompute):
        _, step = make("batch_norm", way, segment)
        program = step.program_for(tf.zeros((BATCH, LENGTH, WIDTH)), tf.zeros(BATCH, tf.int64))
        graph, plan = expand(program.capture.graph, program.plan)
        moves = [move for move in find_moves(graph, plan).values() if move.nbytes]
        forward = {
            (graph.ops[graph.tensors[m.tensor].producer].name, m.source, m.target)
            for m in moves
            if not graph.ops[graph.tensors[m.tensor].producer].again
        }
        for move in moves:
            producer = graph.ops[graph.tensors[move.tensor].producer]
            if producer.again and graph.ops[move.reader].again:
                assert (producer.name, move.source, move.target) in forward
        sent.append(sum(move.nbytes for move in moves))
    assert sent[1] <= (1.35 if way == "replica" else 1.6) * sent[0]


def test_devices_share_what_is_made_again() -> None:
    _, step = make("layer_norm", "replica", wh.recompute)
    program = step.program_for(tf.zeros((BATCH, LENGTH, WIDTH)), tf.zeros(BATCH, tf.int64))
    for share in program.shares():
        assert share.flops <= 1.02 * share.step_flops / len(program.shares())


def test_copies_run() -> None:
    """TensorFlow merges nodes that do the same of the same; copies are told apart from what they are copies of."""
    w = tf.Variable(tf.random.stateless_normal((64, 64), (1, 2)))

    @wh.function
    def step(x):
        with tf.GradientTape() as tape:
            with wh.recompute(), tf.name_scope("of_copies_run"):
                h = tf.tanh(tf.matmul(tf.tanh(tf.matmul(x, w)), w))
            loss = tf.reduce_sum(h * h)
        w.assign_sub(0.01 * tape.gradient(loss, w))
        return loss

    context.enable_run_metadata()
    try:
        step(tf.ones((16, 64)))
        ran = context.export_run_metadata()
    finally:
        context.disable_run_metadata()
    # The graphs are those of all functions that this process has run.
    graphs = [graph for each in ran.function_graphs for graph in each.partition_graphs]
    found = (node for graph in graphs for node in graph.node if "MatMul" in node.op and "of_copies_run" in node.name)
    nodes = {node.name: node for node in found}
    again = [node for node in nodes.values() if "_whaleish_again" in node.attr]
    devices = wh.size()
    assert len(nodes) == devices * (2 + 1 + 3), "forward, again the first, and the gradients"
    assert len(again) == devices


def test_blocks_of_a_rule_are_segments_of_their_own() -> None:
    layers = keras.layers
    model = keras.Sequential([keras.Input((8,))])
    for number in range(3):
        dense = [layers.Dense(8, activation="gelu", name=f"dense_{n}") for n in range(2)]
        model.add(keras.Sequential([keras.Input((8,)), *dense], name=f"block_{number}"))

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x)))
        for v, g in zip(model.trainable_variables, tape.gradient(loss, model.trainable_variables), strict=True):
            v.assign_sub(0.1 * g)
        return loss

    for pattern in ("block_.*", "(block_.*)", r"block_\d+", "block_._1/"):
        compiled = wh.function(step, rules={pattern: wh.recompute()})
        graph = compiled.program_for(tf.ones((4, 8))).capture.graph
        assert len({op.again for op in graph.ops if op.again}) == 3, pattern


def test_nothing_to_recompute() -> None:
    @wh.function
    def step(x):
        with wh.recompute():
            y = tf.tanh(tf.square(x))
        return tf.reduce_sum(y)

    x = tf.ones((4, 2))
    assert "nothing of wh.recompute() (from tests/transparency/test_recompute.py" in step.explain(x)
    assert not any(op.again for op in step.program_for(x).capture.graph.ops)
    assert float(step(x)) == pytest.approx(8 * np.tanh(1))


def test_random_draws_with_state_and_custom_gradients() -> None:
    """A draw that nothing tells how to repeat is kept; what the user makes again by TensorFlow's means stays so."""
    w = tf.Variable(np.full((8, 8), 0.1))

    @tf.custom_gradient
    def doubled(x):
        y = tf.exp(tf.sin(x) * 0.1)
        return 2 * y, lambda dy: 2 * dy * y * tf.cos(x) * 0.1

    inner = tf.recompute_grad(lambda h: tf.tanh(tf.matmul(h, w)))

    def step(x, scope):
        with tf.GradientTape() as tape:
            with scope():
                h = tf.tanh(tf.matmul(x, w)) * tf.random.uniform((4, 8), seed=3, dtype=tf.float64)
                h = doubled(tf.sin(h))
                h = tf.sin(inner(h))
            loss = tf.reduce_sum(h * h)
        return loss, tape.gradient(loss, w)

    x = tf.constant(np.random.default_rng(0).normal(size=(4, 8)))
    with as_written():
        found = []
        for scope in (contextlib.nullcontext, wh.recompute):
            tf.random.set_seed(5)
            compiled = wh.function(lambda x, scope=scope: step(x, scope))
            found.append([np.asarray(value) for value in compiled(x)])
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


SCRIPT = """
import contextlib, json, sys, time
import keras, psutil
import tensorflow as tf
import whaleish as wh
from tools.bench.worker import peak_bytes
from whaleish.passes.budget import peak_of, recomputed
wh.init(virtual_devices=1)
keras.utils.set_random_seed(1)
layers = [keras.layers.Dense(512, activation="gelu") for _ in range(12)]
for layer in layers:
    layer.build((None, 512))
weights = [variable for layer in layers for variable in layer.trainable_variables]

def step(x):
    with tf.GradientTape() as tape:
        h = x
        for first in range(0, 12, 3):
            with wh.recompute() if sys.argv[1] == "scopes" else contextlib.nullcontext():
                for layer in layers[first : first + 3]:
                    h = layer(h)
        loss = tf.reduce_mean(h * h)
    for weight, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
        weight.assign_sub(0.1 * gradient)
    return loss

budget = {"recompute": "auto", "memory": 300_000_000} if sys.argv[1] == "auto" else {}
compiled = wh.function(step, **budget)
x = tf.random.normal((6144, 512))
program = compiled.program_for(x)
peak = peak_of(recomputed(program.capture.graph, program.plan, None))
before = psutil.Process().memory_info().rss
losses = [float(compiled(x))]
grown = peak_bytes() - before
begun = time.process_time()
losses += [float(compiled(x))]
print(json.dumps({
    "predicted": peak.nbytes - peak.of("weights", "slots", "arguments"),
    "all": peak.nbytes,
    "grown": grown,
    "seconds": time.process_time() - begun,
    "losses": losses,
}))
"""


def _measured(how: str) -> dict[str, Any]:
    import json

    return json.loads(run_fresh(SCRIPT, how, timeout=200).splitlines()[-1])


def test_memory_falls_as_predicted() -> None:
    """12 layers of which each makes 6 tensors of 12.6 MB that its gradient reads; segments of 3 layers."""
    plain, scopes, auto = map(_measured, ("plain", "scopes", "auto"))
    for found in (plain, scopes, auto):
        assert found["grown"] == pytest.approx(found["predicted"], rel=0.15)
        assert found["losses"] == pytest.approx(plain["losses"], rel=1e-5)
    assert plain["grown"] > 2.2 * scopes["grown"]
    assert auto["all"] <= 300_000_000
    assert scopes["seconds"] < 1.6 * plain["seconds"]
