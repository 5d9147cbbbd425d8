"""Whether devices keep exactly to their schedule."""

from typing import Any

import pytest
import tensorflow as tf

import whaleish as wh


def queues(schedule: str) -> Any:
    weights = [tf.Variable(tf.eye(16), name=f"{schedule}_{number}") for number in range(3)]

    @wh.function
    def step(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            with wh.pipeline(4, schedule):
                for weight in weights:
                    with wh.stage():
                        x = tf.tanh(x @ weight)
            loss = tf.reduce_mean(x)
        for weight, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
            weight.assign_sub(0.1 * gradient)
        return loss

    return step.program_for(tf.ones((8, 16))).actors.graph.queues


@pytest.mark.parametrize("world_of", [3], indirect=True)
@pytest.mark.parametrize(("schedule", "kept"), [("1f1b", False), ("zb-h1", True)])
def test_a_backward_in_halves_is_kept_in_order(world_of: int, schedule: str, kept: bool) -> None:
    assert {queue.ordered for queue in queues(schedule)} == {kept}
