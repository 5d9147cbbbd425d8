"""A transformer encoder with AdamW over 4 hosts: the state on every rank, or shared out by `replica(zero=...)`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tools.bench import encoder
from tools.bench.contestant import Builders, Contestant
from tools.bench.encoder import BERT_BASE, Size

RATE, DECAY, BETA_1, BETA_2, EPSILON = 1e-4, 0.01, 0.9, 0.999, 1e-7


class AdamW:
    """As Keras writes it, for variables of any kind."""

    def __init__(self, weights: Sequence[tf.Variable]) -> None:
        self.weights = weights
        self.first = [tf.Variable(tf.zeros_like(weight), trainable=False) for weight in weights]
        self.second = [tf.Variable(tf.zeros_like(weight), trainable=False) for weight in weights]
        self.count = tf.Variable(0.0, trainable=False)

    def apply(self, gradients: Sequence[tf.Tensor]) -> None:
        count = self.count.assign_add(1.0)
        rate = RATE * tf.sqrt(1 - BETA_2**count) / (1 - BETA_1**count)
        for weight, m, v, gradient in zip(self.weights, self.first, self.second, gradients, strict=True):
            weight.assign_sub(weight * (RATE * DECAY))
            m.assign_add((gradient - m) * (1 - BETA_1))
            v.assign_add((gradient * gradient - v) * (1 - BETA_2))
            weight.assign_sub(m * rate / (tf.sqrt(v) + EPSILON))


def horovod(size: Size = BERT_BASE) -> Contestant:
    """Data parallel, as Horovod's documentation writes it."""
    import horovod.tensorflow as hvd

    layers = encoder.make(size)
    weights = encoder.weights_of(layers)
    rule = AdamW(weights)
    x, y = encoder.rows_of(size, hvd.rank(), hvd.size())

    @tf.function
    def step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = encoder.loss_of(encoder.through(layers, x), y)
        rule.apply(hvd.DistributedGradientTape(tape).gradient(loss, weights))
        return hvd.allreduce(loss, name="zero_loss")

    state = 4.0 * sum(float(np.prod(weight.shape)) * 4 for weight in weights)
    return Contestant(lambda: float(step(x, y)), state=state)


def whaleish(zero: int, size: Size = BERT_BASE) -> Contestant:
    """The same step under `replica(zero=...)`."""
    import whaleish as wh
    from tools.bench.promise import bytes_per_host

    wh.init()
    layers = encoder.make(size)
    weights = encoder.weights_of(layers)
    rule = AdamW(weights)
    x, y = encoder.data(size)

    @wh.function
    def step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape, wh.replica(zero=zero):
            loss = encoder.loss_of(encoder.through(layers, x), y)
        rule.apply(tape.gradient(loss, weights))
        return loss

    promised = bytes_per_host(step, x, y)
    stored = sum(map(_stored, (*weights, *rule.first, *rule.second)))
    return Contestant(lambda: float(step(x, y)), promised, state=stored + _gradients(step, x, y))


def _stored(variable: Any) -> float:
    """Bytes of a variable in this process, by its storage."""
    tensors = [resource.read() for resource in variable.parts.resources] if variable.in_parts else [variable]
    return float(sum(np.prod(tensor.shape) * tensor.dtype.size for tensor in tensors))


def _gradients(step: Any, *args: Any) -> float:
    """Bytes of the gradients of all weights as updates read them on one rank, by the plan."""
    from whaleish.graph import BACKWARD, UPDATE, layout_bytes

    program = step.program_for(*args)
    graph, plan = program.capture.graph, program.plan
    found: dict[tuple[int, Any], int] = {}
    for index, op in enumerate(graph.ops):
        for tensor, layout in zip(op.inputs, plan.choices[index].inputs, strict=True):
            spec = graph.tensors[tensor]
            if op.phase == UPDATE and graph.ops[spec.producer].phase == BACKWARD and spec.shape is not None:
                found[tensor, layout] = layout_bytes(plan.mesh.local_shape(spec.shape, layout, 0), spec.dtype)
    return float(sum(found.values()))


def zero_1() -> Contestant:
    return whaleish(1)


def zero_2() -> Contestant:
    return whaleish(2)


def zero_3() -> Contestant:
    return whaleish(3)


BUILDERS: Builders = {
    "horovod": horovod,
    "whaleish zero=1": zero_1,
    "whaleish zero=2": zero_2,
    "whaleish zero=3": zero_3,
}
