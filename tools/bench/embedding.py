"""A large embedding table: 1,000,000 rows of 64 numbers over 4 hosts, 4,096 ids a batch, most of them of few rows.

ids [4096] ── table [1,000,000, 64] ── Dense 1 ── loss
"""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

from tools.bench.contestant import Builders, Contestant
from tools.bench.promise import bytes_per_host

ROWS, WIDTH, BATCH, RATE, EXPONENT = 1_000_000, 64, 4096, 0.1, 1.1


def data() -> tuple[tf.Tensor, tf.Tensor]:
    """The whole batch, the same in every rank: ids by Zipf's law."""
    rng = np.random.default_rng(3)
    return tf.constant(rng.zipf(EXPONENT, BATCH) % ROWS), tf.constant(rng.normal(size=(BATCH, 1)).astype("float32"))


def make() -> tuple[keras.layers.Layer, keras.layers.Layer]:
    keras.utils.set_random_seed(7)
    table, head = keras.layers.Embedding(ROWS, WIDTH), keras.layers.Dense(1)
    table.build()
    head.build((None, WIDTH))
    return table, head


def horovod(dense: bool) -> Contestant:
    """Data parallel; the table's gradient travels whole, or as its rows."""
    import horovod.tensorflow as hvd

    table, head = make()
    weights = [*table.trainable_variables, *head.trainable_variables]
    variables = [weight.value for weight in weights]
    rows = BATCH // hvd.size()
    ids, y = (tensor[hvd.rank() * rows :][:rows] for tensor in data())

    @tf.function
    def step(ids: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(head(table(ids)) - y))
        gradients = hvd.DistributedGradientTape(tape, sparse_as_dense=dense).gradient(loss, variables)
        for variable, gradient in zip(variables, gradients, strict=True):
            if isinstance(gradient, tf.IndexedSlices):
                variable.scatter_sub(tf.IndexedSlices(RATE * gradient.values, gradient.indices))
            else:
                variable.assign_sub(RATE * gradient)
        return hvd.allreduce(loss, name=f"loss_{dense}")

    return Contestant(lambda: float(step(ids, y)))


def whaleish(stated: str) -> Contestant:
    """Under `replica`, with the table whole, or its rows sharded."""
    import whaleish as wh

    wh.init()
    table, head = make()
    if stated:
        wh.layout(table.embeddings, stated)
    weights = [*table.trainable_variables, *head.trainable_variables]
    optimizer = keras.optimizers.SGD(RATE)
    optimizer.build(weights)
    ids, y = data()

    @wh.function
    def step(ids: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape, wh.replica():
            loss = tf.reduce_mean(tf.square(head(table(ids)) - y))
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return loss

    by_rank = [len(np.unique(rows)) for rows in np.split(ids.numpy(), wh.size())]
    promised = bytes_per_host(step, ids, y, different=sum(by_rank) / BATCH)
    note = f"the batches of the ranks have {', '.join(map(str, by_rank))} different ids of {BATCH // wh.size()}"
    return Contestant(lambda: float(step(ids, y)), promised, note)


BUILDERS: Builders = {
    "dense": lambda: horovod(True),
    "rows": lambda: horovod(False),
    "whaleish": lambda: whaleish(""),
    "whaleish-sharded": lambda: whaleish("S(0)"),
}
