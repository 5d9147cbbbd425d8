"""Scripts as Horovod's documentation has them, with the import changed: ranks train as one device on all their rows."""

from __future__ import annotations

import numpy as np
import pytest

STEPS, ROWS = 5, 8


def _model(seed):
    import keras

    keras.utils.set_random_seed(seed)
    layers = keras.layers
    return keras.Sequential([keras.Input((6,)), layers.Dense(16, "tanh"), layers.Dense(3)])


def _data():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(STEPS, 2 * ROWS, 6)).astype("float32")
    return x, rng.integers(0, 3, (STEPS, 2 * ROWS))


def _optimizer(kind, sgd_rate=0.1):
    import keras

    of = keras.optimizers
    return {
        "momentum": lambda: of.SGD(sgd_rate, momentum=0.9),
        "clipped": lambda: of.SGD(sgd_rate, global_clipnorm=0.3),
        "adamw": lambda: of.AdamW(0.01),
        "scaled": lambda: of.LossScaleOptimizer(of.SGD(sgd_rate), initial_scale=8.0),
    }[kind]()


def _loss():
    import keras

    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def _fit(kind, options, rank=None):
    """The weights after each epoch of a step. `rank`: None trains on all rows, on one device."""
    x, y = _data()
    if rank is not None:
        import whaleish.horovod.keras as hvd

        hvd.init()
        rank = hvd.rank()
    model, optimizer, callbacks = _model(1 + (rank or 0)), _optimizer(kind), []
    rows = slice(None) if rank is None else slice(rank * ROWS, (rank + 1) * ROWS)
    if rank is not None:
        optimizer = hvd.DistributedOptimizer(optimizer, **options)
        callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback()]
        model.optimizer = optimizer
        optimizer.build(model.trainable_variables)
        hvd.broadcast_variables(model.variables, root_rank=0)
    model.compile(optimizer, _loss())
    losses = []
    for step in range(STEPS):
        logs = model.fit(x[step][rows], y[step][rows], batch_size=2 * ROWS, verbose=0, callbacks=callbacks)
        losses += logs.history["loss"]
    return losses, [weight.numpy() for weight in model.weights]


def _on_rank(cases):
    return [_fit(kind, options, rank=-1) for kind, options in cases]


CASES = [
    ("momentum", {}),
    ("clipped", {"groups": 2}),
    ("adamw", {}),
    ("scaled", {}),
    ("momentum", {"gradient_predivide_factor": 2.0}),
]


@pytest.mark.ranks
@pytest.mark.parametrize("ranks", [2], indirect=True)
def test_fit(ranks) -> None:
    runs = ranks.run(_on_rank, CASES, timeout=200)
    for number, (kind, _) in enumerate(CASES):
        losses, weights = _fit(kind, {})
        (found, own), (other, also) = runs[0][number], runs[1][number]
        assert found == other
        np.testing.assert_allclose(found, losses, rtol=1e-5)
        for first, second, expected in zip(own, also, weights, strict=True):
            np.testing.assert_array_equal(first, second)
            np.testing.assert_allclose(first, expected, rtol=1e-3, atol=1e-5)


def _loop():
    """A custom loop with a tape, of which ranks have different numbers of rows, and two optimizers."""
    import keras
    import tensorflow as tf

    import whaleish.horovod.tensorflow as hvd

    hvd.init()
    x, y = _data()
    rows = slice(hvd.rank() * ROWS, (hvd.rank() + 1) * ROWS)
    model = _model(1 + hvd.rank())
    first, second = keras.optimizers.SGD(0.1), keras.optimizers.SGD(0.05, momentum=0.9)
    halves = model.trainable_variables[:2], model.trainable_variables[2:]
    loss_of, made = _loss(), []

    @tf.function
    def step(inputs, labels, begin):
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(inputs, training=True))
        tape = hvd.DistributedGradientTape(tape, compression=hvd.Compression.none)
        gradients = tape.gradient(loss, model.trainable_variables)
        first.apply_gradients(zip(gradients[:2], halves[0], strict=True))
        second.apply_gradients(zip(gradients[2:], halves[1], strict=True))
        return loss

    hvd.broadcast_variables(model.variables, root_rank=0)
    for number in range(STEPS):
        loss = step(x[number][rows], y[number][rows], number == 0)
        made.append(float(hvd.allreduce(loss)))
    return made, [weight.numpy() for weight in model.weights]


@pytest.mark.ranks
@pytest.mark.parametrize("ranks", [2], indirect=True)
def test_a_loop_with_a_tape(ranks) -> None:
    import keras
    import tensorflow as tf

    x, y = _data()
    model, loss_of = _model(1), _loss()
    first, second = keras.optimizers.SGD(0.1), keras.optimizers.SGD(0.05, momentum=0.9)
    losses = []
    for number in range(STEPS):
        with tf.GradientTape() as tape:
            loss = loss_of(y[number], model(x[number], training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        first.apply_gradients(zip(gradients[:2], model.trainable_variables[:2], strict=True))
        second.apply_gradients(zip(gradients[2:], model.trainable_variables[2:], strict=True))
        losses.append(float(loss))
    for found, weights in ranks.run(_loop, timeout=120):
        np.testing.assert_allclose(found, losses, rtol=1e-5)
        for ours, theirs in zip(weights, model.weights, strict=True):
            np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-4, atol=1e-6)


def _other_things(folder):
    """What has no place above; each says what came of it."""
    import keras
    import tensorflow as tf

    import whaleish.horovod.keras as hvd
    import whaleish.horovod.tensorflow as raw

    hvd.init()
    found = {}
    # Gradients over two passes.
    variable = tf.Variable([1.0, 2.0])
    optimizer = raw.DistributedOptimizer(keras.optimizers.SGD(1.0), backward_passes_per_step=2)
    for value in (1.0, 3.0):
        optimizer.apply([tf.fill([2], value + hvd.rank())], [variable])
    found["passes"] = variable.numpy().tolist()
    # Sparse gradients, of each rank another row.
    table = tf.Variable(tf.ones((4, 2)))
    for dense in (False, True):
        optimizer = raw.DistributedOptimizer(keras.optimizers.SGD(1.0), sparse_as_dense=dense)
        optimizer.apply([tf.IndexedSlices(tf.ones((1, 2)), [hvd.rank()], [4, 2])], [table])
    found["sparse"] = table.numpy().tolist()
    # Types that Horovod does not reduce or send.
    half = tf.Variable(tf.fill([3], tf.cast(1.0 + hvd.rank(), tf.bfloat16)))
    raw.DistributedOptimizer(keras.optimizers.SGD(1.0)).apply([tf.cast([1.0, 2.0, 3.0], tf.bfloat16)], [half])
    seeds = tf.Variable(tf.cast([hvd.rank(), 7], tf.uint32))
    raw.broadcast_variables([half, seeds], 0)
    found["types"] = [tf.cast(half, tf.float32).numpy().tolist(), seeds.numpy().tolist()]
    # Rates.
    model = _model(1)
    model.compile(keras.optimizers.SGD(0.4), _loss())
    x, y = _data()
    warm = hvd.callbacks.LearningRateWarmupCallback(0.4, warmup_epochs=2)
    falls = hvd.callbacks.LearningRateScheduleCallback(0.4, 0.5, start_epoch=2)
    rates = model.fit(x[0], y[0], batch_size=8, epochs=4, verbose=0, callbacks=[warm, falls]).history["lr"]
    found["rates"] = [round(rate, 4) for rate in rates]
    # Saved as plain.
    distributed = hvd.DistributedOptimizer(keras.optimizers.Adam(0.01))
    model.compile(distributed, _loss())
    model.fit(x[0], y[0], verbose=0)
    if hvd.rank() == 0:
        model.save(f"{folder}/model.keras")
        loaded = keras.models.load_model(f"{folder}/model.keras").optimizer
        found["loaded"] = [one.__module__ for one in type(loaded).__mro__]
    # Mistakes.
    for name, act in {
        "twice": lambda: hvd.DistributedOptimizer(distributed),
        "none": lambda: hvd.DistributedOptimizer("adam"),
        "outside": lambda: keras.optimizers.LossScaleOptimizer(
            hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))
        ).apply([tf.ones(2)], [variable]),
        "built": lambda: hvd.DistributedOptimizer(optimizer_built(), backward_passes_per_step=3),
        "elastic": lambda: raw.elastic,
        "nothing": lambda: raw.no_such_name,
    }.items():
        try:
            act()
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"
    found["mirrors"] = {"allreduce", "size", "join", "Average", "ProcessSet", "Compression"} <= set(dir(raw))
    return found


def optimizer_built():
    import keras
    import tensorflow as tf

    optimizer = keras.optimizers.SGD(0.1)
    optimizer.build([tf.Variable(1.0)])
    return optimizer


@pytest.mark.ranks
@pytest.mark.parametrize("ranks", [2], indirect=True)
def test_what_else_there_is(ranks, tmp_path) -> None:
    first, second = ranks.run(_other_things, str(tmp_path), timeout=120)
    for found in (first, second):
        assert found["passes"] == [-4.0, -3.0], "1 + 3 + half a rank's worth twice"
        assert found["sparse"] == [[0.0, 0.0], [0.0, 0.0], [1.0, 1.0], [1.0, 1.0]]
        assert found["types"] == [[0.0, -1.0, -2.0], [0, 7]]
        assert found["rates"] == [0.3, 0.4, 0.4, 0.2]
        assert "distributed already" in found["twice"]
        assert found["none"].startswith("TypeError: DistributedOptimizer(str): give an optimizer")
        assert "DistributedOptimizer(LossScaleOptimizer(optimizer))" in found["outside"]
        assert "give DistributedOptimizer a new one" in found["built"]
        assert found["elastic"].startswith("NotImplementedError: whaleish.horovod.tensorflow.elastic is not supported")
        assert "has no attribute 'no_such_name'" in found["nothing"]
        assert found["mirrors"]
    assert not any("whaleish" in module for module in first["loaded"])
