"""The large classifier: 100,000 classes over 4 hosts.

    x [64, 1000] ── Dense 768 ── Dense 512 ── features [64, 512] ── Dense 100,000 ── loss

The two small layers are the backbone, data parallel in all contestants; their 1.16 million weights make up nearly all
that the two fast contestants send.
"""

from __future__ import annotations

import keras
import tensorflow as tf

from tools.bench.contestant import Builders, Contestant
from tools.bench.promise import bytes_per_host

BATCH, INPUTS, HIDDEN, FEATURES, CLASSES, RATE = 64, 1000, 768, 512, 100_000, 0.01


def data() -> tuple[tf.Tensor, tf.Tensor]:
    """The whole batch, the same in every rank."""
    generator = tf.random.Generator.from_seed(3)
    labels = generator.uniform((BATCH,), maxval=CLASSES, dtype=tf.int64)
    return generator.normal((BATCH, INPUTS)), labels


def make_backbone() -> keras.Model:
    keras.utils.set_random_seed(7)
    layers = keras.layers
    return keras.Sequential(
        [keras.Input((INPUTS,)), layers.Dense(HIDDEN, activation="relu"), layers.Dense(FEATURES, activation="relu")]
    )


def make_head(classes: int) -> keras.Model:
    return keras.Sequential([keras.Input((FEATURES,)), keras.layers.Dense(classes)])


def plain() -> Contestant:
    """Data parallel, as Horovod's documentation writes it: every rank has all weights."""
    import horovod.tensorflow as hvd

    backbone, head = make_backbone(), make_head(CLASSES)
    variables = [v.value for v in backbone.trainable_variables + head.trainable_variables]
    optimizer = keras.optimizers.SGD(RATE)
    optimizer.build(backbone.trainable_variables + head.trainable_variables)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    rows = BATCH // hvd.size()
    x, y = (tensor[hvd.rank() * rows :][:rows] for tensor in data())

    @tf.function
    def step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = loss_of(y, head(backbone(x)))
        gradients = hvd.DistributedGradientTape(tape).gradient(loss, variables)
        optimizer.apply_gradients(zip(gradients, backbone.trainable_variables + head.trainable_variables, strict=True))
        return hvd.allreduce(loss, name="plain_loss")

    return Contestant(lambda: float(step(x, y)))


def by_hand() -> Contestant:
    """The classifier's columns sharded, written out with Horovod's calls by someone who knows how."""
    import horovod.tensorflow as hvd

    size, rank = hvd.size(), hvd.rank()
    own, rows = CLASSES // size, BATCH // size
    backbone, head = make_backbone(), make_head(own)
    kernel, bias = head.trainable_variables
    optimizer = keras.optimizers.SGD(RATE)
    weights = [*backbone.trainable_variables, kernel, bias]
    optimizer.build(weights)
    x, y = data()

    @tf.function
    def step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        x = x[rank * rows : (rank + 1) * rows]
        with tf.GradientTape() as tape:
            features = backbone(x)
        whole = hvd.allgather(features, name="features")
        logits = tf.matmul(whole, kernel.value) + bias.value
        largest = hvd.allreduce(tf.reduce_max(logits, 1, keepdims=True), op=hvd.Max, name="largest")
        shifted = logits - largest
        powers = tf.exp(shifted)
        # Labels of other ranks' classes are outside the range: rows of zeros.
        hot = tf.one_hot(y - rank * own, own)
        total, label = hvd.grouped_allreduce(
            [tf.reduce_sum(powers, 1, keepdims=True), tf.reduce_sum(hot * shifted, 1, keepdims=True)],
            op=hvd.Sum,
            name="sums",
        )
        loss = tf.reduce_mean(tf.math.log(total) - label)
        errors = (powers / total - hot) / BATCH
        gradients = [tf.matmul(whole, errors, transpose_a=True), tf.reduce_sum(errors, 0)]
        back = hvd.reducescatter(tf.matmul(errors, kernel.value, transpose_b=True), op=hvd.Sum, name="back")
        small = tape.gradient(features, [v.value for v in backbone.trainable_variables], output_gradients=back)
        small = hvd.grouped_allreduce(small, op=hvd.Sum, name="small")
        optimizer.apply_gradients(zip([*small, *gradients], weights, strict=True))
        return loss

    return Contestant(lambda: float(step(x, y)))


def whaleish() -> Contestant:
    """Two scopes."""
    import whaleish as wh

    wh.init()
    backbone, head = make_backbone(), make_head(CLASSES)
    weights = backbone.trainable_variables + head.trainable_variables
    optimizer = keras.optimizers.SGD(RATE)
    optimizer.build(weights)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    x, y = data()

    @wh.function
    def step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            with wh.replica():
                features = backbone(x)
            with wh.split():
                loss = loss_of(y, head(features))
        gradients = tape.gradient(loss, weights)
        optimizer.apply_gradients(zip(gradients, weights, strict=True))
        return loss

    return Contestant(lambda: float(step(x, y)), bytes_per_host(step, x, y))


BUILDERS: Builders = {"plain": plain, "by-hand": by_hand, "whaleish": whaleish}
