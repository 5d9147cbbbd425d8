"""A step of a transformer encoder that keeps what its layers make for the backward, and one that makes it again.

x [32, 128, 256] ── 6 layers, each a segment: attention of 8 heads, then 1,024 hidden units ── mean square
"""

from __future__ import annotations

import contextlib

import tensorflow as tf

from tools.bench import encoder
from tools.bench.contestant import Builders, Contestant
from tools.bench.encoder import Size

SIZE = Size(layers=6, width=256, heads=8, hidden=1024, length=128, batch=32)


def contestant(on: bool, size: Size = SIZE) -> Contestant:
    """With or without `wh.recompute()` round each layer; its note says what a device holds, as predicted."""
    import whaleish as wh
    from whaleish.passes.budget import peak_of, recomputed

    wh.init(virtual_devices=1)
    layers = encoder.make(size)
    weights = encoder.weights_of(layers)
    x, y = encoder.data(size)

    @wh.function
    def step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            found = x
            for layer in layers:
                with wh.recompute() if on else contextlib.nullcontext():
                    found = layer(found)
            loss = encoder.loss_of(found, y)
        encoder.update(weights, tape.gradient(loss, weights))
        return loss

    program = step.program_for(x, y)
    peak = peak_of(recomputed(program.capture.graph, program.plan, None))
    note = f"predicted are {peak.of('activations') / 1e6:.0f} MB of activations, {peak.nbytes / 1e6:.0f} MB in all"
    return Contestant(lambda: float(step(x, y)), None, note)


BUILDERS: Builders = {"whaleish": lambda: contestant(False), "whaleish-recompute": lambda: contestant(True)}
