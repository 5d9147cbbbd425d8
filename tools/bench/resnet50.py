"""Data parallel ResNet-50 over hosts, with batch-norm statistics of each rank's own part."""

from __future__ import annotations

import tensorflow as tf

from tools.bench.contestant import Builders, Contestant
from tools.bench.promise import bytes_per_host
from tools.bench.resnet import BATCH, data, make_net, whaleish_step


def horovod() -> Contestant:
    """The custom loop of Horovod's documentation."""
    import horovod.tensorflow as hvd

    net = make_net()
    rows = BATCH // hvd.size()
    x, y = (tensor[hvd.rank() * rows :][:rows] for tensor in data())

    @tf.function
    def step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = net.loss(x, y)
        net.update(hvd.DistributedGradientTape(tape).gradient(loss, [v.value for v in net.weights]))
        return hvd.allreduce(loss, name="horovod_loss")

    return Contestant(lambda: float(step(x, y)))


def whaleish() -> Contestant:
    import whaleish as wh

    wh.init()
    step, note = whaleish_step(make_net())
    x, y = data()
    return Contestant(lambda: float(step(x, y)), bytes_per_host(step, x, y), note)


BUILDERS: Builders = {"horovod": horovod, "whaleish": whaleish}
