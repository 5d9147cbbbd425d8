"""Stages that cannot be: each is an error before any step, that says what, where and what to do."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

import whaleish as wh
from whaleish.planner import PlanError
from whaleish.scopes import ScopeError

X = tf.TensorSpec((8, 4), tf.float32)
HERE = f"(from {os.path.relpath(__file__)}:"


@pytest.fixture
def weights() -> list[tf.Variable]:
    return [tf.Variable(tf.random.normal((4, 4)), name=f"w{number}") for number in range(3)]


def refused(step: Callable[..., Any], error: type[Exception], *said: str) -> None:
    with pytest.raises(error, match=".*".join(map(re.escape, said))):
        wh.function(step).plan_for(X)


def line_of(step: Callable[..., Any], text: str) -> str:
    """How an error names the first line of a step that has the text."""
    lines, first = inspect.getsourcelines(step)
    return f"{HERE}{first + next(number for number, line in enumerate(lines) if text in line)} on)"


@pytest.mark.parametrize("world_of", [2], indirect=True)
def test_an_op_between_stages(world_of: int, weights: list[tf.Variable]) -> None:
    def step(x: tf.Tensor) -> tf.Tensor:
        with wh.pipeline(2):
            with wh.stage():
                h = x @ weights[0]
            h = tf.nn.relu(h)
            with wh.stage():
                return h @ weights[1]

    refused(step, PlanError, "Relu", "test_stages.py:", "between stages 0 and 1", "put it into one of them")


@pytest.mark.parametrize("world_of", [2], indirect=True)
def test_ops_before_and_after_stages_are_placed(world_of: int, weights: list[tf.Variable]) -> None:
    def step(x: tf.Tensor) -> tf.Tensor:
        x = x * 2.0
        with wh.pipeline(2):
            with wh.stage():
                h = x @ weights[0]
            with wh.stage():
                h = h @ weights[1]
        return tf.reduce_sum(tf.nn.relu(h))

    plan = wh.function(step).plan_for(X)
    assert plan.pipelining is not None
    assert [mesh.devices for mesh in plan.pipelining.meshes] == [(0,), (1,)]


@pytest.mark.parametrize("world_of", [2], indirect=True)
def test_a_late_stage_that_feeds_an_early_one(world_of: int) -> None:
    table = tf.Variable(tf.random.normal((4, 4)), name="table")

    def step(x: tf.Tensor) -> tf.Tensor:
        with wh.pipeline(2):
            with wh.stage():
                h = x @ table
            with wh.stage():  # the table lives on stage 0, where it is first read
                return tf.gather(table, tf.argmax(tf.nn.relu(h), -1))

    refused(step, PlanError, "stage 1 feeds stage 0", "ArgMax", "test_stages.py:", "in the order of the data")


@pytest.mark.parametrize("world_of", [2], indirect=True)
def test_a_variable_written_in_two_stages(world_of: int, weights: list[tf.Variable]) -> None:
    count = tf.Variable(0.0, name="count")

    def step(x: tf.Tensor) -> tf.Tensor:
        with wh.pipeline(2):
            with wh.stage():
                h = x @ weights[0]
                count.assign_add(1.0)
            with wh.stage():
                count.assign_add(1.0)
                return h @ weights[1]

    refused(step, PlanError, "'count'", "written in stages 0 and 1", "test_stages.py:", "a variable of its own")


@pytest.mark.parametrize("world_of", [2], indirect=True)
def test_a_stage_without_ops(world_of: int, weights: list[tf.Variable]) -> None:
    def step(x: tf.Tensor) -> tf.Tensor:
        with wh.pipeline(2):
            with wh.stage():
                h = x @ weights[0]
            with wh.stage():
                pass
        return h

    refused(step, ScopeError, "wh.stage() has no op inside", "take it away")


@pytest.mark.parametrize("world_of", [2], indirect=True)
def test_a_pipeline_without_stages(world_of: int, weights: list[tf.Variable]) -> None:
    def step(x: tf.Tensor) -> tf.Tensor:
        with wh.pipeline(2):
            return x @ weights[0]

    refused(step, PlanError, "wh.pipeline(micro_batches=2)", HERE, "no wh.stage()", "wh.accumulate(2)")


@pytest.mark.parametrize("world_of", [2], indirect=True)
def test_more_stages_than_devices(world_of: int, weights: list[tf.Variable]) -> None:
    def step(x: tf.Tensor) -> tf.Tensor:
        with wh.pipeline(2):
            for weight in weights:
                with wh.stage():
                    x = x @ weight
        return x

    refused(step, PlanError, "3 stages", HERE, "cannot share 2 devices", "make fewer stages")


@pytest.mark.parametrize("world_of", [2], indirect=True)
def test_more_micro_batches_than_rows(world_of: int, weights: list[tf.Variable]) -> None:
    def step(x: tf.Tensor) -> tf.Tensor:
        with wh.pipeline(16):
            with wh.stage():
                h = x @ weights[0]
            with wh.stage():
                return h @ weights[1]

    refused(step, PlanError, "a batch of 8 rows", "wh.pipeline(16)", HERE, "fewer micro-batches")


@pytest.mark.parametrize("world_of", [3], indirect=True)
@pytest.mark.parametrize(
    ("devices", "said"),
    [
        (([0], None), ["stage 1", HERE, "names no devices", "or none of them"]),
        (([0, 1], [1, 2]), ["stage 0", HERE, "stage 1", HERE, "share some of their devices", "[0, 1] and [1, 2]"]),
        (([0], [1]), ["the stages", HERE, "leave the devices [2] without work"]),
        (([0], [1, 7]), ["wh.stage(devices=(1, 7))", HERE, "there are 3 devices", "Name some of these"]),
        (([0], [2, 1]), ["stage 1", HERE, "devices=[2, 1]", "ascending order, [1, 2]"]),
    ],
)
def test_devices_that_do_not_fit(world_of: int, weights: list[tf.Variable], devices: Any, said: list[str]) -> None:
    def step(x: tf.Tensor) -> tf.Tensor:
        with wh.pipeline(2):
            for weight, own in zip(weights[:2], devices, strict=True):
                with wh.stage(own):
                    x = x @ weight
        return x

    refused(step, PlanError, *said)


@pytest.mark.parametrize("world_of", [3], indirect=True)
def test_devices_that_do_not_fit_the_schedule(world_of: int, weights: list[tf.Variable]) -> None:
    def step(x: tf.Tensor) -> tf.Tensor:
        with wh.pipeline(2, "interleaved(2)"):
            for weight, own in zip(weights[:2], ([0], [1, 2]), strict=True):
                with wh.stage(own):
                    x = x @ weight
        return x

    refused(
        step, PlanError, "stage 0", HERE, "stage 1", HERE, "on the same devices by their schedule", "[0] and [1, 2]"
    )


@pytest.mark.parametrize("world_of", [2], indirect=True)
def test_a_norm_over_the_batch_in_a_pipeline(world_of: int, weights: list[tf.Variable]) -> None:
    def step(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            with wh.pipeline(2):
                with wh.stage():
                    h = x @ weights[0]
                    h = h - tf.reduce_mean(h, 0)
                with wh.stage():
                    h = h @ weights[1]
            loss = tf.reduce_mean(h * h)
        for weight, gradient in zip(weights[:2], tape.gradient(loss, weights[:2]), strict=True):
            weight.assign_sub(gradient)
        return loss

    refused(step, PlanError, "runs for each micro-batch", "test_stages.py:", "wh.local_statistics()")


@pytest.mark.parametrize("world_of", [2], indirect=True)
def test_micro_batches_out_of_order(world_of: int, weights: list[tf.Variable]) -> None:
    def step(x: tf.Tensor) -> tf.Tensor:
        with wh.pipeline(2, "F0 F1 B1 B0\nF0 F1 B1 B0"):
            with wh.stage():
                h = x @ weights[0]
            with wh.stage():
                return h @ weights[1]

    refused(step, PlanError, "with 2 stages", HERE, "device 0 has B0.0 after B1.0", "go through a stage in order")


@pytest.mark.parametrize("world_of", [2], indirect=True)
@pytest.mark.parametrize("schedule", ["interleaved(3)", "interleaved(0)", "F0 B0"])
def test_a_schedule_for_other_stages(world_of: int, weights: list[tf.Variable], schedule: str) -> None:
    def step(x: tf.Tensor) -> tf.Tensor:
        with wh.pipeline(2, schedule):
            with wh.stage():
                h = x @ weights[0]
            with wh.stage():
                return h @ weights[1]

    refused(step, PlanError, f"wh.pipeline(schedule={schedule!r}) with 2 stages", line_of(step, "x @ weights"))


@pytest.mark.parametrize("world_of", [2], indirect=True)
def test_a_stage_outside_the_pipeline(world_of: int, weights: list[tf.Variable]) -> None:
    def step(x: tf.Tensor) -> tf.Tensor:
        with wh.pipeline(2), wh.stage():
            h = x @ weights[0]  # inside
        with wh.stage():
            return h @ weights[1]  # outside

    said = "stage 1", line_of(step, "# outside"), "is outside", line_of(step, "# inside"), "one wh.pipeline(), or none"
    refused(step, PlanError, *said)


@pytest.mark.parametrize("world_of", [2], indirect=True)
def test_two_pipelines(world_of: int, weights: list[tf.Variable]) -> None:
    """Alike but for their lines."""

    def step(x: tf.Tensor) -> tf.Tensor:
        with wh.pipeline(2), wh.stage():
            h = x @ weights[0]  # first
        with wh.pipeline(2), wh.stage():
            return h @ weights[1]  # second

    said = line_of(step, "# first"), "and wh.pipeline(micro_batches=2)", line_of(step, "# second"), "has one pipeline"
    refused(step, PlanError, *said)


@pytest.mark.parametrize("world_of", [4], indirect=True)
def test_a_replica_without_a_degree_round_stages(world_of: int, weights: list[tf.Variable]) -> None:
    def step(x: tf.Tensor) -> tf.Tensor:
        with wh.replica(), wh.pipeline(2):
            with wh.stage():
                h = x @ weights[0]
            with wh.stage():
                return h @ weights[1]

    refused(step, PlanError, "wh.replica()", HERE, "is round stages", "wh.replica(2)")


@pytest.mark.parametrize("world_of", [4], indirect=True)
def test_stages_inside_different_replicas(world_of: int, weights: list[tf.Variable]) -> None:
    def step(x: tf.Tensor) -> tf.Tensor:
        with wh.replica(2), wh.stage():
            h = x @ weights[0]
        with wh.stage():
            return h @ weights[1]

    refused(step, PlanError, "stage 0", HERE, "stage 1", HERE, "inside 2 and 1 replicas", "round all of them")
