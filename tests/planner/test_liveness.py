"""What a device holds: under ZeRO as promised, totals over micro-batches, and old values while they are read."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import whaleish as wh
from tests.passes.test_repeat import whole_plan
from tests.planner.graphs import Graph
from tools.bench import encoder
from tools.bench.encoder import Size
from tools.bench.zero import AdamW
from whaleish.arguments import take_call
from whaleish.graph import BACKWARD, UPDATE, LogicalGraph, Tensor
from whaleish.passes import timed
from whaleish.planner.held import ACTIVATIONS, GATHERED, GRADIENTS, OLD_VALUE, SLOTS, WEIGHTS, WORKSPACE, Held, Peak
from whaleish.planner.liveness import find_peak
from whaleish.rewrite.expand import expand
from whaleish.sbp import B, P, S
from whaleish.world import world

PARTS = 4
ENCODER = Size(layers=3, width=128, heads=4, hidden=256, length=4, batch=16)


def peak_of(step: Callable[..., Any], *args: Any) -> tuple[LogicalGraph, Peak]:
    """The graph as it runs, and when part 0 holds most."""
    compiled = wh.function(step)
    call = take_call(args, {}, "global", world())
    captured = compiled._capture(call)
    graph, plan = expand(*timed(captured.graph, compiled._plan_of(captured, call)))
    return graph, find_peak(graph, plan)


def adamw(zero: int, micro_batches: int = 1) -> tuple[dict[str, int], LogicalGraph, Peak]:
    """Bytes of all large weights, of the others and of the largest; the graph; the peak."""
    layers = encoder.make(ENCODER)
    weights = encoder.weights_of(layers)
    rule = AdamW(weights)

    def step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        accumulate = wh.accumulate(micro_batches) if micro_batches > 1 else contextlib.nullcontext()
        with tf.GradientTape() as tape, accumulate, wh.replica(zero=zero):
            loss = encoder.loss_of(encoder.through(layers, x), y)
        rule.apply(tape.gradient(loss, weights))
        return loss

    counts = [prod(weight.shape) for weight in weights]
    large = 4 * sum(count for count in counts if count >= 4096)
    sizes = {"large": large, "small": 4 * sum(counts) - large, "largest": 4 * max(counts)}
    return sizes, *peak_of(step, *encoder.data(ENCODER))


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_zero_holds_what_it_promises(zero: int) -> None:
    sizes, _, peak = adamw(zero)
    large, small, largest = sizes["large"], sizes["small"], sizes["largest"]
    assert peak.of(WEIGHTS) == (large // PARTS if zero == 3 else large) + small
    assert peak.of(SLOTS) == 2 * ((large // PARTS if zero else large) + small) + 4
    # A summand that waits for its reduction, and what becomes of it.
    assert largest <= peak.of(GRADIENTS) <= 2 * largest + small
    summands = [held for held in peak.held if held.kind == GRADIENTS and held.layout == (P,)]
    assert summands[0].nbytes == largest
    if zero == 3:  # the one in use, and those that are gathered ahead
        gathered = [held for held in peak.held if held.kind == GATHERED]
        assert {held.layout for held in gathered if held.nbytes >= largest} == {(B,)}
        assert largest <= peak.of(GATHERED) <= 3 * largest + small
    else:  # decay, which needs no gradient, is assigned when the backward has used what was before
        assert peak.of(GATHERED) <= small


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_micro_batches_keep_totals(zero: int) -> None:
    """Whole ones under zero=1, though slots are in pieces, and pieces from zero=2 on."""
    sizes, _, peak = adamw(zero, micro_batches=4)
    totals = (sizes["large"] if zero == 1 else sizes["large"] // PARTS) + sizes["small"]
    assert totals <= peak.of(GRADIENTS) <= totals + 2 * sizes["largest"]
    if zero == 3:  # each is gathered once for all micro-batches
        assert peak.of(GATHERED) > 0.7 * sizes["large"]


def test_casts_that_are_read_again_are_copies_of_weights() -> None:
    widths = [128, 128, 128, 512, 128, 128, 128, 128]  # most is held where the backward is at the wide ones
    weights = [tf.Variable(tf.fill([*shape], 0.01)) for shape in pairwise(widths)]

    def step(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape, wh.replica(zero=3):
            for weight in weights:
                x = tf.tanh(tf.matmul(x, tf.cast(weight, tf.bfloat16)))
            loss = tf.reduce_sum(tf.cast(x, tf.float32) ** 2)
        for weight, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
            weight.assign_sub(0.1 * gradient)
        return loss

    graph, peak = peak_of(step, tf.zeros([8, 128], tf.bfloat16))
    size = 128 * 128 * 2
    assert {held.nbytes for held in peak.held if held.kind == GATHERED and held.layout == (B,)} <= {size, 4 * size}
    again = [held for held in peak.held if graph.ops[graph.tensors[held.tensor].producer].again]
    assert again
    assert {held.kind for held in again} == {GATHERED}
    assert all(held.nbytes < size // 4 for held in peak.held if held.kind == ACTIVATIONS)


def updated_early(early: bool) -> LogicalGraph:
    """A product whose weight is assigned to before or after its backward reads it."""
    graph = Graph()
    logical, x, handle = graph.logical, graph.argument(1, 8), graph.variable(8, 8)
    value = graph.add("ReadVariableOp", [handle], (8, 8))
    y = graph.add("MatMul", [x, value], (1, 8))
    later = graph.add("MatMul", [y, value], (1, 8), phase=BACKWARD, transpose_b=True)
    decayed = graph.add("Mul", [value, value], (8, 8), phase=UPDATE)
    assign = logical.add("AssignSubVariableOp", (handle, decayed), [], name="assign", phase=UPDATE)
    assign.controls = (graph.op_of(value), *(() if early else (graph.op_of(later),)))
    logical.effects = (logical.ops.index(assign),)
    logical.outputs = (later,)
    if early:  # so that it is the last
        later_op = logical.ops[graph.op_of(later)]
        later_op.controls = (graph.op_of(y),)
        for _ in range(6):
            made = graph.add("Sigmoid", [later_op.inputs[0]], (1, 8))
            later_op.inputs = (made, value)
    return logical


def test_an_old_value_is_a_copy_while_it_is_read() -> None:
    size = 8 * 8 * 4
    late = updated_early(early=False)
    assert find_peak(late, whole_plan(late)).of(GATHERED) == 0
    early = _sorted(updated_early(early=True))
    peak = find_peak(early, whole_plan(early))
    assert peak.of(GATHERED) == peak.of(WEIGHTS) == size
    (copy,) = (held for held in peak.held if held.kind == GATHERED)
    assert copy.place.endswith(OLD_VALUE)
    assert peak.of(WORKSPACE) >= size, "what is subtracted is there when the copy is made"


def _sorted(graph: LogicalGraph) -> LogicalGraph:
    """The graph with its ops in a topological order."""
    done: list[int] = []
    while len(done) < len(graph.ops):
        ready = (
            index
            for index, op in enumerate(graph.ops)
            if index not in done and {graph.tensors[t].producer for t in op.inputs} | {*op.controls} <= {*done}
        )
        done.append(next(ready))
    place = {old: new for new, old in enumerate(done)}
    tensors = [Tensor(place[spec.producer], spec.slot, spec.shape, spec.dtype) for spec in graph.tensors]
    graph.ops = [graph.ops[index] for index in done]
    for op in graph.ops:
        op.controls = tuple(place[c] for c in op.controls)
    graph.tensors, graph.effects = tensors, tuple(place[index] for index in graph.effects)
    return graph


def test_a_gradient_that_is_marked_is_there_once() -> None:
    """`Gradient` hands on what it is given: summand, piece, and nothing besides."""
    weight = tf.Variable(tf.ones([256, 256]))

    def step(x: tf.Tensor) -> None:
        with tf.GradientTape() as tape, wh.replica(zero=2):
            loss = tf.reduce_sum(tf.tanh(tf.matmul(x, weight)))
        weight.assign_sub(tape.gradient(loss, weight))

    _, peak = peak_of(step, np.zeros([64, 256], "float32"))
    held: list[Held] = [each for each in peak.held if each.kind == GRADIENTS]
    assert {(each.layout, each.nbytes) for each in held} == {((P,), 256 * 256 * 4), ((S(0),), 256 * 256)}
    assert len(held) == 2
