"""`wh.offload()` changes nothing but where things wait."""

from __future__ import annotations

import contextlib
import itertools
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import whaleish as wh
from tests.products import either, pairwise
from tests.transparency.precision import computing_in
from tests.transparency.recomputing import BATCH, FEW_WITH_WAYS, LENGTH, NETS, WAYS, WIDTH, as_written, compare, make
from tests.transparency.sharded import RULES, SCOPES, train
from tests.transparency.test_zero import check, parts_of
from tests.transparency.zoo import nested
from whaleish.graph import BACKWARD, FORWARD
from whaleish.offloading import HOST, STAYS_BELOW
from whaleish.rules.host import TO_DEVICE, TO_HOST
from whaleish.state import storage

BOTH_WAYS = [way for way in WAYS if way != "pipeline, recompute"]
FEW = [*FEW_WITH_WAYS, ("attention", "replica")]


def again_and_away() -> Any:
    return nested(wh.offload(), wh.recompute())


@pytest.mark.parametrize(("net", "way"), either(FEW, itertools.product(NETS, BOTH_WAYS)))
def test_same_as_without(net: str, way: str) -> None:
    with as_written():
        found = compare(net, way, wh.offload)
    assert (found.losses, found.weights) == (0, 0)
    activations, slots = found.on_host
    assert activations >= 6
    assert slots >= 4


@pytest.mark.parametrize(("net", "way"), [("nested", "replica"), ("attention", "pipeline"), ("batch_norm", "local")])
def test_with_recomputation(net: str, way: str) -> None:
    """What segments are given waits on the host, and what they make again does not."""
    with as_written():
        found = compare(net, way, again_and_away)
        alone = compare(net, way, wh.recompute)
    assert (found.losses, found.weights) == (0, 0)
    assert found.repeated == alone.repeated > 10
    assert found.on_host[0] >= 1


@pytest.mark.parametrize("world_of", [1], indirect=True)
def test_on_one_device(world_of: int) -> None:
    with as_written():
        found = compare("nested", "plain", wh.offload)
    assert (found.losses, found.weights) == (0, 0)
    assert min(found.on_host) >= 4


@pytest.mark.ranks
@pytest.mark.parametrize("ranks", [2], indirect=True)
def test_on_real_ranks(ranks) -> None:
    for outcomes in ranks.run(_on_rank, timeout=200):
        for found in outcomes:
            assert (found.losses, found.weights) == (0, 0)
            assert min(found.on_host) >= 1


def _on_rank():
    import whaleish
    from tests.transparency.recomputing import as_written, compare

    whaleish.init()
    with as_written():
        return [compare(net, way, whaleish.offload) for net, way in (("batch_norm", "replica"), ("nested", "pipeline"))]


@pytest.mark.parametrize(
    *pairwise(
        whole=("rule", "scopes"),
        rule=either(["sgd", "adamw", "scaled"], RULES),
        zero=[0, 1, 3],
        scopes=either(["replica", "replica x accumulate(3)", "pipeline(3)"], SCOPES),
    )
)
def test_optimizers_and_zero(rule: str, zero: int, scopes: str) -> None:
    found = train(rule, zero, scopes, 10, offload=True)
    if zero and scopes != "split":
        check(found, zero, scopes, parts_of(scopes, 4))
    assert max(found.losses, found.variables) <= 1e-9
    assert found.on_host == 1, "all that is kept elementwise for a large weight"


@pytest.mark.ranks
@pytest.mark.parametrize("ranks", [4], indirect=True)
def test_optimizers_and_zero_on_ranks(ranks) -> None:
    cases = [("adamw", 1, "replica"), ("scaled", 3, "replica"), ("lion", 2, "pipeline(3)")]

    def run(cases):
        return [train(*case, 10, True) for case in cases]

    for outcomes in ranks.run(run, cases, timeout=200):
        for found, (_, zero, scopes) in zip(outcomes, cases, strict=True):
            check(found, zero, scopes, parts_of(scopes, 4))
            assert found.on_host == 1


def example(way: str = "replica", segment=wh.offload, net: str = "layer_norm"):
    made, step = make(net, way, segment)
    return made, step, (tf.zeros((BATCH, LENGTH, WIDTH)), tf.zeros(BATCH, tf.int64))


@pytest.mark.parametrize("way", ["replica", "split", "2x2"])
def test_placement(way: str) -> None:
    """Copies and slots are on the host and all else is on its device; of devices, each has its share of the work."""
    _, step, given = example(way)
    program = step.program_for(*given)
    emitted = program.emitted
    ops, nodes = emitted.graph.ops, emitted.writer.function_def.node_def
    slots = {v.handle for v in emitted.graph.variables if v.on_host}
    assert slots
    devices: dict[bool, set[str]] = {True: set(), False: set()}
    for node in nodes:
        op = emitted.op_of[""].get(node.name)
        if op is not None:
            away = ops[op].type == TO_HOST or not slots.isdisjoint(ops[op].inputs)
            assert not away or node.device == HOST, node.name
            if ops[op].type == TO_DEVICE:
                devices[away].add(node.device)
    assert len(devices[False]) == wh.size()
    for variable, spec in zip(program.capture.variables, program.capture.graph.variables, strict=True):
        if spec.on_host:
            assert all(handle.device.endswith(HOST) for handle in storage(variable).handles)
    for share in program.shares():
        assert share.flops <= 1.05 * share.step_flops / len(program.shares())


def waits_for(graph: Any, index: int) -> set[int]:
    """All ops that must have run before one."""
    found, todo = set[int](), [index]
    while todo:
        op = graph.ops[todo.pop()]
        before = {*op.controls, *(graph.tensors[t].producer for t in op.inputs if t not in graph.constants)} - found
        found |= before
        todo += before
    return found


@pytest.mark.parametrize("net", ["layer_norm", "nested", "attention"])
def test_backward_reads_copies_that_come_in_time(net: str) -> None:
    _, step, given = example(net=net)
    graph = step.program_for(*given).capture.graph
    scoped = {n for n, path in enumerate(graph.scopes) if any(scope.kind == "offload" for scope in path)}
    stored = set[int]()  # weights as they are read, and reshaped
    for op in graph.ops:
        if op.type == "ReadVariableOp" or (op.type == "Reshape" and op.inputs[0] in stored):
            stored.update(op.outputs)
    for op in graph.ops:
        for tensor in op.inputs if op.phase == BACKWARD else ():
            maker = graph.ops[graph.tensors[tensor].producer]
            large = np.prod(graph.tensors[tensor].shape or ()) >= STAYS_BELOW
            kept = maker.phase == FORWARD and maker.scope in scoped and large and tensor not in stored
            assert not kept or maker.type == TO_HOST, f"{op.name} reads {maker.name}"
    fetched = [index for index, op in enumerate(graph.ops) if op.type == TO_DEVICE]
    backward = [
        {i for i in waits_for(graph, index) if graph.ops[i].phase == BACKWARD and graph.ops[i].type != TO_DEVICE}
        for index in fetched
    ]
    assert sum(map(bool, backward)) >= len(fetched) - 5, "all but the first wait for the backward"
    assert len({len(ops) for ops in backward}) > len(fetched) // 3, "not all at once"


@pytest.mark.parametrize("clip", [None, 0.5])
def test_slots_are_fetched_in_turn(clip: float | None) -> None:
    weights = [tf.Variable(tf.random.stateless_normal((80, 80), (n, 1))) for n in range(8)]
    rule = keras.optimizers.Adam(0.01, global_clipnorm=clip)
    rule.build(weights)

    @wh.function
    def step(x):
        with tf.GradientTape() as tape, wh.replica(), wh.offload("slots"):
            for weight in weights:
                x = tf.tanh(x @ weight)
            loss = tf.reduce_mean(x * x)
        rule.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return loss

    graph = step.program_for(tf.ones((8, 80))).capture.graph
    slots = {v.handle for v in graph.variables if v.on_host}
    assert len(slots) == 16
    reads = [i for i, op in enumerate(graph.ops) if op.type == "ReadVariableOp" and op.inputs[0] in slots]
    before = [waits_for(graph, read) for read in reads]
    assert all(any(graph.ops[i].phase == BACKWARD for i in found) for found in before)
    others = [
        {h for i in found if "Assign" in graph.ops[i].type for h in slots.intersection(graph.ops[i].inputs)}
        - {graph.ops[read].inputs[0]}
        for read, found in zip(reads, before, strict=True)
    ]
    if clip is None:  # gradients come one after another
        assert len({len(found) for found in before}) >= 8
    else:  # all come at once
        assert max(map(len, others)) == 6, "the last waits for those of 3 earlier weights, each of the other"


def test_estimate_and_explain() -> None:
    _, plain, given = example(segment=contextlib.nullcontext)
    _, step, _ = example()
    without, held = plain.plan_for(*given).estimate().fullest, step.plan_for(*given).estimate().fullest
    assert without.on_host == 0
    assert held["slots"] < 0.3 * without["slots"]
    assert held.on_host > without["slots"] - held["slots"]
    assert held.peak < without.peak - 0.5 * without["slots"]
    text = step.explain(*given)
    assert "on the host" in text
    assert text.count(" of activations, ") == text.count(" of slots, ") == 1
    assert text.count(", entered 4 times") == 2
    assert "recomputing.py" in text.split("what waits in the host's memory:")[1]
    assert 'wh.offload("slots")' in plain.explain(*given)
    assert 'wh.offload("slots")' not in text


def test_what_is_not_there_is_said() -> None:
    weight = tf.Variable(tf.eye(80))

    @wh.function
    def step(x):
        with tf.GradientTape() as tape, wh.offload():
            loss = tf.reduce_sum(x @ weight)
        weight.assign_sub(0.1 * tape.gradient(loss, weight))
        return loss

    text = step.explain(tf.ones((8, 80)))
    assert "no activations of wh.offload() (from " in text
    assert "no slots of wh.offload() (from " in text


def test_steps_that_differ_in_it_share_variables_and_checkpoints(tmp_path) -> None:
    def trained(*segments, restored: str = ""):
        with computing_in("float64"):
            made, _, _ = example("plain", contextlib.nullcontext)
            rule = keras.optimizers.Adam(0.01)
            rule.build(made.trained)
            objects = {"weights": made.variables, "rule": rule}
            if restored:
                wh.checkpoint.restore(restored, objects)
            losses = []
            for number, segment in enumerate(segments):

                @wh.function
                def step(x, y, segment=segment):
                    with tf.GradientTape() as tape, wh.replica(zero=1), segment():
                        loss = made.loss(x, y)
                    rule.apply_gradients(zip(tape.gradient(loss, made.trained), made.trained, strict=True))
                    return loss

                rng = np.random.default_rng(number + (2 if restored else 0))
                x = rng.normal(size=(BATCH, LENGTH, WIDTH))
                losses.append(float(step(x, rng.integers(0, 5, BATCH))))
            return losses, objects

    plain, away = contextlib.nullcontext, wh.offload
    expected, _ = trained(plain, plain, plain, plain)
    mixed, _ = trained(away, plain, away, plain)
    np.testing.assert_allclose(mixed, expected, rtol=1e-9)
    for first, then in ((away, plain), (plain, away)):
        _, objects = trained(first, first)
        path = wh.checkpoint.save(str(tmp_path / str(first is away)), objects).path
        found, _ = trained(then, then, restored=path)
        np.testing.assert_allclose(found, expected[2:], rtol=1e-9)


@pytest.mark.parametrize("given", [("weights",), ((),), (3,), ("slots", "gradients"), (["slots"],)])
def test_kinds_that_are_none(given: Any) -> None:
    with pytest.raises(ValueError, match=r"give \"activations\" or \"slots\", or nothing for both"):
        wh.offload(*given)


def test_a_pipeline_that_runs_its_forward_again() -> None:
    _, step, given = example("pipeline, recompute")
    with pytest.raises(ValueError, match=r"wh.offload\(\).*recompute=True"):
        step(*given)
