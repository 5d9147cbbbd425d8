"""Ops that run again: where copies stand, what they wait for, and that a graph computes the same with them."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from tensorflow.python.eager import context

import whaleish as wh
from tests.planner.graphs import Graph
from whaleish.graph import BACKWARD, FORWARD, LogicalGraph
from whaleish.mesh import Axis, Mesh
from whaleish.passes import Repeat, entering, follow, repeat
from whaleish.passes.recompute import recompute
from whaleish.planner.plan import Choice, Plan
from whaleish.program import Program
from whaleish.sbp import B
from whaleish.world import world

WIDTH = 3


def tanhs(length: int) -> tuple[Graph, list[int], list[int]]:
    """A chain of tanhs, and back: TanhGrad(y, dy) for each. Returns the graph, the tensors forward, and backward."""
    graph = Graph()
    forward, backward = [graph.argument(WIDTH)], []
    for _ in range(length):
        forward.append(graph.add("Tanh", [forward[-1]], (WIDTH,)))
    gradient = graph.add("Square", [forward[-1]], (WIDTH,), phase=BACKWARD)
    for made in reversed(forward[1:]):
        gradient = graph.add("TanhGrad", [made, gradient], (WIDTH,), phase=BACKWARD)
        backward.append(gradient)
    graph.logical.outputs = (gradient,)
    return graph, forward, backward


def whole_plan(graph: LogicalGraph) -> Plan:
    choices = tuple(Choice(((B,),) * len(op.inputs), ((B,),) * len(op.outputs)) for op in graph.ops)
    inputs, outputs = ((B,),) * len(graph.inputs), ((B,),) * len(graph.outputs)
    variables = tuple((v.name, (B,)) for v in graph.variables)
    return Plan(Mesh((Axis("d", 1),)), "0", inputs, outputs, variables, choices)


def test_copies_stand_before_their_first_reader_and_wait() -> None:
    graph, forward, backward = tanhs(4)
    logical = graph.logical
    ops = tuple(graph.op_of(t) for t in forward[1:3])
    readers = tuple(graph.op_of(t) for t in backward[-2:])
    waits = tuple(entering(logical, readers))
    assert waits == (graph.op_of(backward[1]),)
    made, origin = repeat(logical, [Repeat(ops, readers, waits)])
    copies = [index for index, op in enumerate(made.ops) if op.again]
    assert [made.ops[index].phase for index in copies] == [BACKWARD, BACKWARD]
    assert [origin[index] for index in copies] == list(ops)
    first, second = (made.ops[index] for index in copies)
    assert [origin[c] for c in first.controls] == list(waits)
    assert not second.controls, "it reads the first"
    assert copies == [min(i for i, o in enumerate(origin) if o == readers[0]) - 2 + n for n in range(2)]
    assert made.ops[copies[1] + 1].inputs[0] == second.outputs[0]
    assert logical.ops[readers[0]].inputs[0] == forward[2], "the given graph stays as it is"
    assert all(made.tensors[t].producer == i for i, op in enumerate(made.ops) for t in op.outputs)


def test_what_nobody_reads_any_more_goes() -> None:
    graph, forward, backward = tanhs(2)
    extra = graph.add("Exp", [forward[1]], (WIDTH,))
    end = graph.add("Mul", [backward[-1], extra], (WIDTH,), phase=BACKWARD)
    graph.logical.outputs = (end,)
    exp, reader = graph.op_of(extra), graph.op_of(end)
    made, origin = repeat(graph.logical, [Repeat((exp,), (reader,))])
    assert origin.count(exp) == 1, "the original is made for nobody else"
    assert made.ops[origin.index(exp)].again


def test_plans_follow() -> None:
    graph, forward, backward = tanhs(3)
    plan = whole_plan(graph.logical)
    made, origin = repeat(graph.logical, [Repeat((graph.op_of(forward[1]),), (graph.op_of(backward[-1]),))])
    followed = follow(plan, origin)
    assert len(followed.choices) == len(made.ops) == len(graph.logical.ops) + 1


FUNCTIONS = {
    "Tanh": np.tanh,
    "Neg": np.negative,
    "Square": np.square,
    "AddV2": np.add,
    "Mul": np.multiply,
    "TanhGrad": lambda y, dy: dy * (1 - y * y),
}
ONE, TWO = ("Tanh", "Neg", "Square"), ("AddV2", "Mul", "TanhGrad")


@st.composite
def steps(draw: st.DrawFn) -> tuple[LogicalGraph, list[tuple[int, ...]]]:
    """A random forward and a random backward that reads it, and segments of the forward."""
    graph = Graph()
    made = [graph.argument(WIDTH), graph.argument(WIDTH)]
    count = draw(st.integers(2, 14))
    for number in range(count + draw(st.integers(1, 12))):
        phase = FORWARD if number < count else BACKWARD
        type = draw(st.sampled_from(ONE if phase == FORWARD and draw(st.booleans()) else TWO))
        inputs = [draw(st.sampled_from(made)) for _ in range(1 if type in ONE else 2)]
        if phase == FORWARD:
            inputs = [t for t in inputs if graph.logical.ops[graph.op_of(t)].phase == FORWARD]
        made.append(graph.add(type, inputs, (WIDTH,), phase=phase))
    graph.logical.outputs = tuple({made[-1], *draw(st.lists(st.sampled_from(made), max_size=2))})
    ops = list(range(2, 2 + count))
    cuts = sorted({0, count, *draw(st.lists(st.integers(0, count), max_size=4))})
    return graph.logical, [tuple(ops[a:b]) for a, b in itertools.pairwise(cuts) if draw(st.booleans())]


def run(graph: LogicalGraph) -> list[np.ndarray]:
    values: dict[int, np.ndarray] = {t: np.linspace(-0.9, 0.8, WIDTH) + n for n, t in enumerate(graph.inputs)}
    for index, op in enumerate(graph.ops):
        assert all(control < index for control in op.controls)
        if op.type != "Placeholder":
            values[op.outputs[0]] = FUNCTIONS[op.type](*(values[t] for t in op.inputs))
    return [values[t] for t in graph.outputs]


@settings(max_examples=300, deadline=None)
@given(steps())
def test_random_steps_compute_the_same(given: tuple[LogicalGraph, list[tuple[int, ...]]]) -> None:
    graph, segments = given
    before = [(op.type, op.inputs, op.controls) for op in graph.ops]
    made = recompute(graph, whole_plan(graph), segments)
    assert before == [(op.type, op.inputs, op.controls) for op in graph.ops]
    assert len(made.plan.choices) == len(made.graph.ops) == len(made.origin)
    with np.errstate(all="ignore"):
        for one, other in zip(run(graph), run(made.graph), strict=True):
            np.testing.assert_array_equal(one, other)
    inside = {index: n for n, ops in enumerate(segments) for index in ops}
    readers = made.graph.consumers()
    for index, op in enumerate(made.graph.ops):
        late = [r for r in readers[op.outputs[0]] if made.graph.ops[r].phase == BACKWARD]
        if op.again:
            assert late, "no copy is made for nobody"
            assert made.origin[index] in inside
        elif made.origin[index] in inside and op.outputs[0] not in made.graph.outputs:
            own = inside[made.origin[index]]
            left = [r for r in readers[op.outputs[0]] if inside.get(made.origin[r]) != own or made.graph.ops[r].again]
            stays = any(made.graph.ops[r].phase == FORWARD or made.graph.ops[r].again for r in left)
            assert not late or stays, "the backward reads nothing first-hand that does not leave its segment"


def test_what_is_emitted_is_not_merged_with_what_it_repeats() -> None:
    """Copies that wait for nothing are equal to their originals, but for their number."""
    w = tf.Variable(tf.ones((8, 8)))

    @wh.function
    def step(x):
        with tf.GradientTape() as tape, tf.name_scope("of_not_merged"):
            loss = tf.reduce_sum(tf.tanh(tf.matmul(tf.tanh(tf.matmul(x, w)), w)))
        w.assign_sub(tape.gradient(loss, w))
        return loss

    x = tf.ones((4, 8))
    program = step.program_for(x)
    graph = program.capture.graph
    tanh = next(index for index, op in enumerate(graph.ops) if op.type == "Tanh")
    product = graph.tensors[graph.ops[tanh].inputs[0]].producer
    readers = [index for index in graph.consumers()[graph.ops[tanh].outputs[0]] if graph.ops[index].phase == BACKWARD]
    made, origin = repeat(graph, [Repeat((product, tanh), tuple(readers))])
    repeating = Program(replace(program.capture, graph=made), follow(program.plan, origin), world())
    counts = []
    for each in (program, repeating):
        context.enable_run_metadata()
        try:
            each([x])
            ran = context.export_run_metadata()
        finally:
            context.disable_run_metadata()
        # The graphs are those of all functions that this process has run.
        nodes = [node for one in ran.function_graphs for graph in one.partition_graphs for node in graph.node]
        counts.append(len({node.name for node in nodes if node.op == "Tanh" and "of_not_merged" in node.name}))
    assert counts[0]
    assert counts[1] == counts[0] + wh.size()
