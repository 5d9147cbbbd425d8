"""Weights in pieces are gathered a little before their use, for the backward pass again, and never after a change."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import whaleish as wh
from whaleish.arguments import take_call
from whaleish.graph import BACKWARD, LogicalGraph
from whaleish.passes import timed
from whaleish.passes.reads import AHEAD, time_reads
from whaleish.planner.plan import Plan
from whaleish.world import world

WIDTH, BATCH = 64, 8


def captured(depth: int, residual: bool, half: bool, scope) -> tuple[LogicalGraph, Plan]:
    """The graph and plan of a step of SGD on square layers, one after the other."""
    weights = [tf.Variable(tf.fill([WIDTH, WIDTH], 0.01), name=f"w{number}") for number in range(depth)]

    def step(x):
        with tf.GradientTape() as tape, scope:
            for weight in weights:
                used = tf.cast(weight, tf.bfloat16 if half else tf.float32)
                y = tf.tanh(tf.matmul(tf.cast(x, used.dtype), used))
                x = x + tf.cast(y, tf.float32) if residual else y
            loss = tf.reduce_sum(tf.cast(x, tf.float32) ** 2)
        for weight, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
            weight.assign_sub(0.1 * gradient)
        return loss

    compiled = wh.function(step)
    call = take_call((np.zeros([BATCH, WIDTH], "float32"),), {}, "global", world())
    found = compiled._capture(call)
    return found.graph, compiled._plan_of(found, call)


def most_at_once(graph: LogicalGraph, plan: Plan) -> int:
    """How many gathered weights are there at a time, where all runs as soon as it may and nothing takes longer."""
    gathered: dict[int, set[int]] = {}  # tensor -> ops that read it whole
    for index, (op, choice) in enumerate(zip(graph.ops, plan.choices, strict=True)):
        for tensor, need in zip(op.inputs, choice.inputs, strict=True):
            made = plan.choices[graph.tensors[tensor].producer].outputs[graph.tensors[tensor].slot]
            weight = graph.tensors[tensor].shape == (WIDTH, WIDTH) and made[0].is_split
            if weight and need[0].is_broadcast and op.type != "AssignSubVariableOp":
                gathered.setdefault(tensor, set()).add(index)
    done: set[int] = set()
    most = 0
    while len(done) < len(graph.ops):
        ready = {
            index
            for index, op in enumerate(graph.ops)
            if index not in done
            and done.issuperset(graph.tensors[t].producer for t in op.inputs)
            and done >= {*op.controls}
        }
        done |= ready
        alive = [t for t, users in gathered.items() if graph.tensors[t].producer in done and not users <= done]
        most = max(most, len(alive))
    assert gathered, "no weight is gathered"
    return most


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("depth", [1, 2, 3, 7, 12])
def test_few_weights_are_whole_at_a_time(depth: int, residual: bool, half: bool) -> None:
    graph, plan = captured(depth, residual, half, wh.replica(zero=3))
    again, followed = time_reads(graph, plan)
    assert most_at_once(again, followed) <= AHEAD + 2
    if depth > AHEAD + 2:
        assert most_at_once(graph, plan) == depth, "the test sees no difference"
    reads = [op for op in again.ops if op.type == "ReadVariableOp" and op.again]
    # The gradient of the first product's input is not wanted, unless something is added to it.
    assert len(reads) == max(0, depth - AHEAD - 1)


def test_assignments_wait_for_reads_that_came_in_between() -> None:
    graph, plan = captured(6, False, False, wh.replica(zero=3))
    again, _ = timed(graph, plan)
    reads = {op.inputs[0]: index for index, op in enumerate(again.ops) if op.type == "ReadVariableOp" and op.again}
    assert reads
    for handle, read in reads.items():
        writes = [op for op in again.ops if handle in op.inputs and op.type.startswith("Assign")]
        assert writes
        assert all(read in op.controls for op in writes)
        assert again.ops[read].phase == BACKWARD


@pytest.mark.parametrize("zero", [0, 1, 2])
def test_nothing_changes_where_weights_are_whole(zero: int) -> None:
    graph, plan = captured(6, False, False, wh.replica(zero=zero))
    assert time_reads(graph, plan) == (graph, plan)


def test_weights_that_are_split_and_used_so_are_not_read_again() -> None:
    graph, plan = captured(6, False, False, wh.split())
    again, _ = time_reads(graph, plan)
    assert not any(op.again for op in again.ops)


def test_conditions_that_assign_wait_for_reads_that_came_in_between() -> None:
    """What is in a body waits as the condition does, so it is the condition that has to wait."""
    weights = [tf.Variable(tf.fill([WIDTH, WIDTH], 0.01)) for _ in range(6)]

    def step(x, go):
        with tf.GradientTape() as tape, wh.replica(zero=3):
            for weight in weights:
                x = tf.tanh(tf.matmul(x, weight))
            loss = tf.reduce_sum(x**2)
        for weight, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
            tf.cond(go, lambda w=weight, g=gradient: [w.assign_sub(g), go][1], lambda: go)
        return loss

    compiled = wh.function(step)
    call = take_call((np.zeros([BATCH, WIDTH], "float32"), tf.constant(True)), {}, "global", world())
    found = compiled._capture(call)
    again, _ = timed(found.graph, compiled._plan_of(found, call))
    runner = {region: op for op in again.ops for region in op.attrs.get("regions", ())}
    reads = {op.inputs[0]: index for index, op in enumerate(again.ops) if op.type == "ReadVariableOp" and op.again}
    assert reads
    for handle, read in reads.items():
        (write,) = [op for op in again.ops if handle in op.inputs and op.type.startswith("Assign")]
        assert read in runner[write.region].controls
