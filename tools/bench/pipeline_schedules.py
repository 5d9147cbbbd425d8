"""A transformer in stages on two virtual devices of one process, by one schedule after another."""

from __future__ import annotations

import tensorflow as tf

from tools.bench import encoder
from tools.bench.contestant import Builders, Contestant
from tools.bench.encoder import Size

DEVICES, MICRO_BATCHES = 2, 4
SIZE = Size(layers=4, width=512, heads=8, hidden=2048, length=64, batch=16)
STAGES = {"1f1b": DEVICES, "zb-h1": DEVICES, "interleaved(2)": 2 * DEVICES}


def whaleish(schedule: str, size: Size = SIZE) -> Contestant:
    """As many layers on each stage."""
    import whaleish as wh

    wh.init(virtual_devices=DEVICES)
    layers = encoder.make(size)
    weights = encoder.weights_of(layers)
    each = size.layers // STAGES[schedule]
    x, y = encoder.data(size)

    @wh.function
    def step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            with wh.pipeline(MICRO_BATCHES, schedule):
                h = x
                for first in range(0, size.layers, each):
                    with wh.stage():
                        for layer in layers[first : first + each]:
                            h = layer(h)
            loss = encoder.loss_of(h, y)
        encoder.update(weights, tape.gradient(loss, weights))
        return loss

    return Contestant(lambda: float(step(x, y)))


BUILDERS: Builders = {
    "whaleish 1f1b": lambda: whaleish("1f1b"),
    "whaleish zb-h1": lambda: whaleish("zb-h1"),
    "whaleish interleaved(2)": lambda: whaleish("interleaved(2)"),
}
