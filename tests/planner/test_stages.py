"""Stages that cannot be: each is an error before any step, that says what, where and what to do."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

import whaleish as wh
from whaleish.planner import PlanError
from whaleish.scopes import ScopeError

X = tf.TensorSpec((8, 4), tf.float32)


@pytest.fixture
def weights() -> list[tf.Variable]:
    return [tf.Variable(tf.random.normal((4, 4)), name=f"w{number}") for number in range(3)]


def refused(step: Callable[..., Any], error: type[Exception], *said: str) -> None:
    with pytest.raises(error, match=".*".join(map(re.escape, said))):
        wh.function(step).plan_for(X)


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

    refused(step, PlanError, "wh.pipeline(micro_batches=2)", "no wh.stage()", "wh.accumulate(2)")


@pytest.mark.parametrize("world_of", [2], indirect=True)
def test_more_stages_than_devices(world_of: int, weights: list[tf.Variable]) -> None:
    def step(x: tf.Tensor) -> tf.Tensor:
        with wh.pipeline(2):
            for weight in weights:
                with wh.stage():
                    x = x @ weight
        return x

    refused(step, PlanError, "3 stages", "cannot share 2 devices", "make fewer stages")


@pytest.mark.parametrize("world_of", [2], indirect=True)
def test_more_micro_batches_than_rows(world_of: int, weights: list[tf.Variable]) -> None:
    def step(x: tf.Tensor) -> tf.Tensor:
        with wh.pipeline(16):
            with wh.stage():
                h = x @ weights[0]
            with wh.stage():
                return h @ weights[1]

    refused(step, PlanError, "a batch of 8 rows", "wh.pipeline(16)", "fewer micro-batches")


@pytest.mark.parametrize("world_of", [3], indirect=True)
@pytest.mark.parametrize(
    ("devices", "said"),
    [
        (([0], None), ["stage 1 names no devices", "or none of them"]),
        (([0, 1], [1, 2]), ["stages 0 and 1 share some of their devices", "[0, 1] and [1, 2]"]),
        (([0], [1]), ["leave the devices [2] without work"]),
        (([0], [1, 7]), ["there are 3 devices"]),
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

    refused(step, PlanError, "device 0 has B0.0 after B1.0", "go through a stage in order")
