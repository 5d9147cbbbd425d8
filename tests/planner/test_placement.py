"""Where the backward of a step in stages goes: to the weights, and but one gradient crosses each border."""

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

import whaleish as wh
from whaleish.runtime import BEFORE

STAGES = 3
ROWS, SIDE, CHANNELS = 16, 6, 4


def convolutions(h: tf.Tensor, w: dict[str, tf.Variable]) -> tf.Tensor:
    """Weights that are far smaller than what they are applied to."""
    return tf.nn.relu(tf.nn.conv2d(h, w["kernel"], 1, "SAME") + w["shift"])


def normalised(h: tf.Tensor, w: dict[str, tf.Variable]) -> tf.Tensor:
    """What the next stage reads is not what the own backward needs."""
    h = h + tf.nn.conv2d(h, w["kernel"], 1, "SAME")
    centred = h - tf.reduce_mean(h, -1, keepdims=True)
    return (
        centred * tf.math.rsqrt(tf.reduce_mean(centred * centred, -1, keepdims=True) + 1e-5) * w["scale"] + w["shift"]
    )


def program(stage: Callable[[tf.Tensor, dict[str, tf.Variable]], tf.Tensor]) -> Any:
    weights = [
        {
            "kernel": tf.Variable(tf.random.normal((3, 3, CHANNELS, CHANNELS)), name=f"kernel_{number}"),
            "scale": tf.Variable(tf.ones(CHANNELS), name=f"scale_{number}"),
            "shift": tf.Variable(tf.zeros(CHANNELS), name=f"shift_{number}"),
        }
        for number in range(STAGES)
    ]
    every = [weight for own in weights for weight in own.values()]

    @wh.function
    def step(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            with wh.pipeline(4):
                h = x
                for own in weights:
                    with wh.stage():
                        h = stage(h, own)
            loss = tf.reduce_mean(h * h)
        for weight, gradient in zip(every, tape.gradient(loss, every), strict=True):
            if gradient is not None:
                weight.assign_sub(0.1 * gradient)
        return loss

    return step.program_for(tf.random.normal((ROWS, SIDE, SIDE, CHANNELS)))


@pytest.mark.parametrize("world_of", [STAGES], indirect=True)
@pytest.mark.parametrize("stage", [convolutions, normalised])
def test_a_stage_does_its_own_backward_and_one_gradient_crosses(world_of: int, stage: Any) -> None:
    made = program(stage)
    for chunk in made.chunks.all:
        if str(chunk.key).startswith("B"):
            types = [op.type for op in chunk.graph.ops]
            assert types.count("Conv2DBackpropFilter") == 1
            assert types.count("Conv2DBackpropInput") == (chunk.key.stage > 0)
            taken = zip(chunk.takes, chunk.graph.inputs[len(chunk.arguments) :], strict=True)
            later = [tensor for (giver, _), tensor in taken if giver.stage > chunk.key.stage]
            assert len(later) == (chunk.key.stage < STAGES - 1)
            assert not [giver for giver, _ in chunk.takes if giver.phase == BEFORE and giver.stage != chunk.key.stage]
