"""What `explain` says of steps with stages, against what is known of them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import whaleish as wh
from tests.transparency.pipes import Pipe, make
from whaleish.arguments import take_call
from whaleish.chunks import Key, cut, make_actors
from whaleish.chunks.chunk import BACKWARD_TURN, FORWARD_TURN
from whaleish.cluster import Cluster
from whaleish.graph import LogicalGraph
from whaleish.planner import Plan
from whaleish.planner.flops import flops
from whaleish.planner.view import op_view
from whaleish.report.costs import cost_of
from whaleish.report.crossings import find_crossings
from whaleish.report.stages import explain_stages, predict_stages
from whaleish.runtime import EACH
from whaleish.schedule import Costs, make_schedule, timeline
from whaleish.world import world

WIDTH = 16
X = np.ones([10, WIDTH], "float32")


def make_step(pipe: Pipe, tied: bool = False) -> Callable[..., Any]:
    """A product in each stage; with `tied` the weight of the first is that of the last too."""
    weights = [tf.Variable(tf.ones([WIDTH, WIDTH]), name=f"w{n}") for n in range(pipe.stages)]
    used = [*weights[:-1], weights[0]] if tied else weights

    def step(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            with pipe.around():
                for stage, weight in enumerate(used):
                    with pipe.stage(stage):
                        x = tf.matmul(x, weight)
            loss = tf.reduce_mean(x**2)
        trained = list({id(weight): weight for weight in used}.values())
        for weight, gradient in zip(trained, tape.gradient(loss, trained), strict=True):
            weight.assign_sub(0.1 * gradient)
        return loss

    return step


def planned(step: Callable[..., Any]) -> tuple[LogicalGraph, Plan]:
    compiled = wh.function(step)
    call = take_call((X,), {}, "global", world())
    captured = compiled._capture(call)
    return captured.graph, compiled._plan_of(captured, call)


@pytest.mark.parametrize("world_of", [2], indirect=True)
def test_the_text(world_of: int) -> None:
    step = wh.function(make_step(Pipe(2, 4)))
    text = step.explain(X)
    assert text.startswith("2 stages for 4 micro-batches, ")
    assert "stage 0 on device 0 (micro~4 x replica:1): 1 variable, 1.0 kB of it on each device" in text
    rows = dict(re.findall(r"^(F0|F1|B0|B1|after 0|after 1) +(\d+) ", text, re.MULTILINE))
    assert list(rows) == ["F0", "F1", "B1", "B0", "after 0", "after 1"]
    schedule = str(make_schedule("1f1b", 2, 4)).splitlines()
    assert "\n".join(["schedule 1f1b", *(f"  {line}" for line in schedule)]) in text
    assert re.search(r"a step would take [\d.]+ us, its micro-batches [\d.]+ us of that with a bubble of \d+%", text)
    # 10 rows in 4 micro-batches are 3, 3, 2 and 2.
    assert "F0 -> stage 1: 192 B for each micro-batch, 640 B a step\n" in text
    assert "B1 -> stage 0: 192 B for each micro-batch, 640 B a step\n" in text
    assert re.search(r"  S\(0\),B +192 B  float32\[10, 16\]  MatMul \S+  .*test_stages\.py:\d+", text)
    assert "2 tensors cross between stages, 1.3 kB a step" in text
    assert "0 boxings inside chunks send 0 B a step" in text
    assert "0 ops run whole on every device of their stage for want of a rule" in text


@pytest.mark.parametrize("world_of", [3], indirect=True)
def test_stages_that_take_turns(world_of: int) -> None:
    text = wh.function(make_step(Pipe(3, None))).explain(X)
    assert text.startswith("3 stages that take turns, ")
    assert "schedule" not in text
    assert "bubble" not in text
    assert "before 0 -> stage 1: 640 B a step" in text


@pytest.mark.parametrize("world_of", [2], indirect=True)
def test_a_schedule_of_ones_own_is_told_by_its_lines(world_of: int) -> None:
    text = wh.function(make_step(Pipe(2, 2, "F0 F1 B0 B1\nF0 F1 B0 B1"))).explain(X)
    assert "\nschedule\n  F0 F1 B0 B1\n  F0 F1 B0 B1\n\n" in text


@pytest.mark.parametrize("world_of", [2], indirect=True)
def test_weight_gradients_for_themselves_and_recomputation(world_of: int) -> None:
    def rows(pipe: Pipe) -> dict[str, int]:
        text = wh.function(make_step(pipe)).explain(X)
        assert ("\nschedule zb-h1, recomputing\n" in text) == pipe.recompute
        return {name: int(ops) for name, ops in re.findall(r"^([FBW]\d) +(\d+) ", text, re.MULTILINE)}

    kept, again = rows(Pipe(2, 4, "zb-h1")), rows(Pipe(2, 4, "zb-h1", recompute=True))
    assert set(kept) == set(again) == {"F0", "F1", "B1", "W0", "W1"}  # nobody waits for a gradient of the step's input
    assert again["B1"] > kept["B1"]


@pytest.mark.parametrize("world_of", [4], indirect=True)
def test_boxings_inside_chunks_name_the_op_that_made_what_is_moved(world_of: int) -> None:
    text = wh.function(make_step(Pipe(2, 2, inner=wh.replica))).explain(X)
    # Each stage adds up its weight's gradient over its two devices, once for all micro-batches.
    assert "\nafter 0: 2.0 kB a step\n  B,P -> B,B      2.0 kB  float32[16, 16]  Mul " in text
    assert "\nafter 1: 2." in text
    assert "Placeholder" not in text


@pytest.mark.parametrize("world_of", [4], indirect=True)
def test_ops_without_a_rule_are_listed(world_of: int) -> None:
    weight = tf.Variable(tf.ones([WIDTH, WIDTH]))

    @wh.function
    def step(x: tf.Tensor) -> tf.Tensor:
        with wh.stage():
            x = tf.raw_ops.DataFormatDimMap(x=tf.cast(tf.matmul(x, weight), "int32") % 4)
        with wh.stage():
            return tf.reduce_sum(x)

    assert re.search(r"1 ops run whole on every device of their stage.*:\n  DataFormatDimMap ", step.explain(X))


@pytest.mark.parametrize("world_of", [2], indirect=True)
def test_every_op_is_in_one_chunk(world_of: int) -> None:
    graph, plan = planned(make_step(Pipe(2, 4)))
    costs = [cost_of(chunk, Cluster(2)) for chunk in cut(graph, plan).all]
    work = [
        index
        for index, op in enumerate(graph.ops)
        if op.type != "Placeholder" and not (op.outputs and all(t in graph.constants for t in op.outputs))
    ]
    assert sum(cost.ops for cost in costs) == len(work)
    assert sum(cost.flops for cost in costs) == sum(flops(op_view(graph, index)) for index in work)


@pytest.mark.parametrize("world_of", [3], indirect=True)
def test_a_tied_weight_crosses_once_and_its_gradient_as_a_sum(world_of: int) -> None:
    graph, plan = planned(make_step(Pipe(3, 4), tied=True))
    assert plan.pipelining is not None
    crossings = find_crossings(graph, cut(graph, plan), plan.pipelining.meshes)
    size = WIDTH * WIDTH * 4
    weight = [c for c in crossings if c.giver.phase == "before" and c.to == 2]
    assert [c.nbytes for c in weight] == [(size,)]
    gradient = [c for c in crossings if c.joined]
    assert [(str(c.giver), c.to, c.nbytes, c.each) for c in gradient] == [("B2", 0, (size,), False)]


@pytest.mark.parametrize("world_of", [3], indirect=True)
def test_devices_of_a_larger_stage_get_the_whole_each(world_of: int) -> None:
    graph, plan = planned(make_step(Pipe(2, 2, devices=((0,), (1, 2)))))
    assert plan.pipelining is not None
    crossings = find_crossings(graph, cut(graph, plan), plan.pipelining.meshes)
    rows = WIDTH * 4
    assert {str(c.giver): c.nbytes for c in crossings} == {"F0": (10 * rows, 10 * rows), "B1": (5 * rows, 5 * rows)}


@pytest.mark.parametrize("world_of", [2], indirect=True)
def test_what_crosses_under_interleaving_does_so_from_stage_to_stage(world_of: int) -> None:
    graph, plan = planned(make_step(Pipe(4, 4, "interleaved(2)")))
    assert plan.pipelining is not None
    crossings = find_crossings(graph, cut(graph, plan), plan.pipelining.meshes)
    assert {(c.giver.stage, c.to) for c in crossings} == {(0, 1), (1, 2), (2, 3), (3, 2), (2, 1), (1, 0)}


@pytest.mark.parametrize("world_of", [4], indirect=True)
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_the_prediction_is_the_timeline_of_the_same_costs(world_of: int, schedule: str) -> None:
    graph, plan = planned(make_step(Pipe(4, 8, schedule)))
    chunks, cluster = cut(graph, plan), Cluster(4, link_rate=float("inf"))
    costs = {chunk.key: cost_of(chunk, cluster).seconds for chunk in chunks.all}
    trace = predict_stages(graph, chunks, make_actors(chunks, plan), plan, cluster)
    each = [event for event in trace.events if event.micro_batch is not None]
    span = max(event.end for event in each) - min(event.begin for event in each)
    forward, backward = (
        [costs[Key(EACH, stage, turn)] for stage in range(4)] for turn in (FORWARD_TURN, BACKWARD_TURN)
    )
    expected = timeline(make_schedule(schedule, 4, 8), Costs(forward, backward, 0.0))
    assert span == pytest.approx(expected.makespan)


@pytest.mark.parametrize("world_of", [4], indirect=True)
def test_over_processes_transfers_take_time_and_registers(world_of: int) -> None:
    graph, plan = planned(make_step(Pipe(4, 4)))
    text = explain_stages(graph, plan, Cluster(4), processes=4)
    assert re.search(r"F0 -> stage 1: .* a step, into \d registers?\n", text)
    chunks = cut(graph, plan)
    actors = make_actors(chunks, plan, 4)
    fast, slow = (
        max(e.end for e in predict_stages(graph, chunks, actors, plan, Cluster(4, link_rate=rate)).events)
        for rate in (1e9, 1e6)
    )
    assert slow > 10 * fast


@pytest.mark.parametrize("world_of", [4], indirect=True)
def test_a_norm_over_all_gradients_sends_each_of_them_once(world_of: int) -> None:
    """A clipped update is made in chunks after the norm, for which other chunks have summed the gradients already."""
    sent = []
    for optimizer in ("sgd", "clipped"):
        net, _, step = make("plain", Pipe(2, 4, inner=wh.replica), optimizer)
        x, y = net.draw(np.random.default_rng(0), 8)
        found = re.search(r"boxings inside chunks send ([0-9.]+ kB)", wh.function(step).explain(x.astype("float32"), y))
        assert found
        sent.append(found[1])
    assert sent[0] == sent[1]
