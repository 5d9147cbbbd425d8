"""A transformer encoder over 4 hosts: its layers in 4 stages, against all of them on every rank."""

from __future__ import annotations

import tensorflow as tf

from tools.bench import encoder
from tools.bench.contestant import Builders, Contestant
from tools.bench.encoder import BERT_BASE, Size

STAGES, MICRO_BATCHES, SCHEDULE = 4, 8, "1f1b"


def horovod(size: Size = BERT_BASE) -> Contestant:
    """Data parallel, as Horovod's documentation writes it."""
    import horovod.tensorflow as hvd

    layers = encoder.make(size)
    weights = encoder.weights_of(layers)
    rows = size.batch // hvd.size()
    x, y = (tensor[hvd.rank() * rows :][:rows] for tensor in encoder.data(size))

    @tf.function
    def step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            h = x
            for layer in layers:
                h = layer(h)
            loss = encoder.loss_of(h, y)
        encoder.update(weights, hvd.DistributedGradientTape(tape).gradient(loss, weights))
        return hvd.allreduce(loss, name="pipeline_loss")

    return Contestant(lambda: float(step(x, y)))


def whaleish(size: Size = BERT_BASE) -> Contestant:
    """`pipeline` round `stage`s of as many layers each."""
    import whaleish as wh

    wh.init()
    layers = encoder.make(size)
    weights = encoder.weights_of(layers)
    each = size.layers // STAGES
    x, y = encoder.data(size)

    @wh.function
    def step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            with wh.pipeline(micro_batches=MICRO_BATCHES, schedule=SCHEDULE):
                h = x
                for first in range(0, size.layers, each):
                    with wh.stage():
                        for layer in layers[first : first + each]:
                            h = layer(h)
            loss = encoder.loss_of(h, y)
        encoder.update(weights, tape.gradient(loss, weights))
        return loss

    return Contestant(lambda: float(step(x, y)))


BUILDERS: Builders = {"horovod": horovod, "whaleish": whaleish}
