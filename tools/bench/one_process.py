"""ResNet-50 on two virtual devices of one process."""

from __future__ import annotations

import tensorflow as tf

from tools.bench.contestant import Builders, Contestant
from tools.bench.resnet import BATCH, data, make_net, whaleish_step

DEVICES = 2


def mirrored() -> Contestant:
    """`tf.distribute.MirroredStrategy` on logical CPUs."""
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * DEVICES)
    strategy = tf.distribute.MirroredStrategy([f"/cpu:{k}" for k in range(DEVICES)])
    with strategy.scope():
        net = make_net(reduction="sum")  # a sum over the part, divided by the whole batch
    rows = BATCH // DEVICES
    x, y = data()
    parts = [(x[k * rows :][:rows], y[k * rows :][:rows]) for k in range(DEVICES)]
    given = strategy.experimental_distribute_values_from_function(
        lambda context: parts[context.replica_id_in_sync_group]
    )

    def replica_step(part: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = net.loss(*part) / BATCH
        net.update(tape.gradient(loss, [v.value for v in net.weights]))
        return loss

    @tf.function
    def step(given: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
        losses = strategy.run(replica_step, args=(given,))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)

    return Contestant(lambda: float(step(given)))


def whaleish() -> Contestant:
    import whaleish as wh

    wh.init(virtual_devices=DEVICES)
    step, note = whaleish_step(make_net())
    x, y = data()
    return Contestant(lambda: float(step(x, y)), None, note)


BUILDERS: Builders = {"mirrored": mirrored, "whaleish": whaleish}
