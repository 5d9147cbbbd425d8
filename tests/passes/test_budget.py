"""Budgets: blocks that repeat are found, and no more of them are made again than a budget asks for."""

from __future__ import annotations

import re

import keras
import pytest
import tensorflow as tf

import whaleish as wh
from tests.passes.test_repeat import tanhs, whole_plan
from whaleish.passes.blocks import find_atoms, find_blocks, find_rounds
from whaleish.passes.budget import peak_of, recomputed
from whaleish.planner.held import ACTIVATIONS, ARGUMENTS, GRADIENTS, SLOTS, WEIGHTS, WORKSPACE
from whaleish.planner.liveness import find_peak
from whaleish.sbp import B, S

WIDTH, ROWS, LAYERS = 16, 64, 6


def step_of(layers, rule=None):
    variables = [variable for layer in layers for variable in layer.trainable_variables]

    def step(x):
        with tf.GradientTape() as tape:
            for layer in layers:
                x = layer(x)
            loss = tf.reduce_mean(x * x)
        gradients = tape.gradient(loss, variables)
        if rule is not None:
            rule.apply_gradients(zip(gradients, variables, strict=True))
        else:
            for variable, gradient in zip(variables, gradients, strict=True):
                variable.assign_sub(0.1 * gradient)
        return loss

    return step


def dense(count: int = LAYERS):
    layers = [keras.layers.Dense(WIDTH, activation="gelu") for _ in range(count)]
    for layer in layers:
        layer.build((None, WIDTH))
    return layers


def segments(compiled, x) -> int:
    return len({op.again for op in compiled.program_for(x).capture.graph.ops if op.again})


@pytest.mark.parametrize(
    ("kinds", "found"),
    [
        ("xababaz", (1, 2, 2)),
        ("aaaa", (0, 1, 4)),
        ("abcabcabcd", (0, 3, 3)),
        ("abcd", (0, 1, 0)),
        ("", (0, 1, 0)),
        ("aabaab", (0, 3, 2)),
    ],
)
def test_rounds(kinds: str, found: tuple[int, int, int]) -> None:
    assert find_rounds(kinds, [1] * len(kinds)) == found


def test_blocks_are_layers() -> None:
    compiled, x = wh.function(step_of(dense())), tf.ones((ROWS, WIDTH))
    graph = compiled.program_for(x).capture.graph
    blocks = find_blocks(graph)
    products = [sum(graph.ops[index].type == "MatMul" for index in block) for block in blocks]
    assert [count for count in products if count] == [1] * LAYERS
    ops = [index for block in blocks for index in block]
    assert ops == sorted(set(ops))


def test_what_does_not_repeat_is_cut_evenly() -> None:
    widths = [7, 9, 11, 13, 17, 19, 23, 29, 31]
    layers = [keras.layers.Dense(width, activation="tanh") for width in widths]
    for layer, width in zip(layers, [5, *widths], strict=False):
        layer.build((None, width))
    compiled = wh.function(step_of(layers))
    graph = compiled.program_for(tf.ones((ROWS, 5))).capture.graph
    assert len(find_atoms(graph)) >= 27
    assert 4 <= len(find_blocks(graph)) <= 6


@pytest.mark.parametrize("world_of", [1, 2], indirect=True)
def test_no_more_segments_than_the_budget_needs(world_of: int) -> None:
    layers, x = dense(), tf.ones((4096, WIDTH))
    step = step_of(layers)
    program = wh.function(step).program_for(x)
    graph, plan = program.capture.graph, program.plan
    whole = peak_of(recomputed(graph, plan, None)).nbytes
    counts = []
    for share in (1.0, 0.9, 0.7, 0.5):
        memory = int(whole * share)
        compiled = wh.function(step, recompute="auto", memory=memory)
        made = compiled.program_for(x)
        assert peak_of(recomputed(made.capture.graph, made.plan, None)).nbytes <= memory
        counts.append(segments(compiled, x))
    assert counts[0] == 0
    assert 0 < counts[1] < counts[2] <= counts[3]
    assert f"{counts[3]} segments are made again for the backward" in compiled.explain(x)


def test_an_impossible_budget_says_what_is_possible() -> None:
    step, x = step_of(dense()), tf.ones((4096, WIDTH))
    with pytest.raises(
        wh.PlanError, match=r"at the least .* [kM]B \((\d+) bytes\). The largest then: .* of activations, "
    ) as error:
        wh.function(step, recompute="auto", memory=1000).program_for(x)
    least = int(re.findall(r"\((\d+) bytes\)", str(error.value))[0])
    assert segments(wh.function(step, recompute="auto", memory=least), x) > 0
    with pytest.raises(wh.PlanError):
        wh.function(step, recompute="auto", memory=least - 1).program_for(x)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"recompute": "always"}, r"recompute='always': give \"auto\""),
        ({"recompute": "auto"}, "give both"),
        ({"memory": 1 << 30}, "give both"),
        ({"recompute": "auto", "memory": 2.5}, "bytes for each device as an integer"),
        ({"recompute": "auto", "memory": 0}, "bytes for each device as an integer"),
    ],
)
def test_arguments_that_are_none(given, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        wh.function(lambda x: x, **given)


def test_not_beside_scopes_or_stages() -> None:
    for scope, told in ((wh.recompute, "chooses segments by itself"), (wh.stage, "not there for steps with stages")):

        def step(x, scope=scope):
            with scope():
                return tf.reduce_sum(tf.tanh(x))

        with pytest.raises(wh.PlanError, match=told):
            wh.function(step, recompute="auto", memory=1).program_for(tf.ones((4, 4)))


def test_a_budget_goes_with_a_method() -> None:
    class Trainer:
        @wh.function(recompute="auto", memory=1 << 40)
        def step(self, x):
            return tf.reduce_sum(x)

    assert float(Trainer().step(tf.ones(3))) == 3


def test_a_chain_holds_what_its_gradients_read() -> None:
    graph, forward, _ = tanhs(5)
    peak = find_peak(graph.logical, whole_plan(graph.logical))
    # All five results, of which the last is squared in the place of nothing: the gradient of the last reads it.
    assert peak.of(ACTIVATIONS) == 5 * 12
    assert peak.of(ARGUMENTS) == 12
    assert peak.nbytes == sum(held.nbytes for held in peak.held) == 5 * 12 + 12 + 12
    assert {held.tensor for held in peak.held if held.kind == ACTIVATIONS} == set(forward[1:])


@pytest.mark.parametrize("world_of", [4], indirect=True)
def test_kinds_by_their_local_sizes(world_of: int) -> None:
    layers, x = dense(2), tf.ones((ROWS, WIDTH))
    rule = keras.optimizers.SGD(0.1, momentum=0.9)
    rule.build([variable for layer in layers for variable in layer.trainable_variables])
    program = wh.function(step_of(layers, rule)).program_for(x)
    peak = find_peak(program.capture.graph, program.plan, part=1)
    weights = 2 * (WIDTH * WIDTH + WIDTH) * 4
    assert peak.of(WEIGHTS) == weights
    assert weights <= peak.of(SLOTS) <= weights + 100
    arguments = [held.nbytes for held in peak.held if held.kind == ARGUMENTS]
    assert arguments == [ROWS * WIDTH * 4, ROWS // 4 * WIDTH * 4], "the batch, and the part's rows of it"
    activations = [held for held in peak.held if held.kind == ACTIVATIONS]
    assert {held.nbytes for held in activations if held.layout == (S(0),)} == {ROWS // 4 * WIDTH * 4}
    assert all(held.place for held in activations)
    assert peak.of(GRADIENTS, WORKSPACE) <= peak.nbytes
    assert (B,) in {held.layout for held in peak.held if held.kind == WEIGHTS}
