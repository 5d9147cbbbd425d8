"""`wh.function`: what is compiled when, what it takes and returns, and what runs whole inside it."""

from __future__ import annotations

import dataclasses
import gc
import threading
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf

import whaleish as wh
from whaleish.capture import from_graph_def

X = np.random.default_rng(0).normal(size=(8, 4)).astype("float32")


@pytest.fixture(autouse=True)
def _four_devices() -> None:
    wh.init(virtual_devices=4)


def test_new_signatures_are_compiled_once() -> None:
    traces = []
    w = tf.Variable(tf.ones([4, 2]))

    @wh.function
    def step(x, scale=1.0):
        traces.append((tuple(x.shape), scale))
        with wh.replica():
            return tf.reduce_sum(tf.matmul(x, w)) * scale

    for _ in range(2):
        for rows in (8, 3, 1, 0):  # the last, smaller batch, and one row or none for four devices
            for scale in (1.0, 2.0):
                expected = X[:rows].sum() * 2 * scale
                assert float(step(X[:rows], scale)) == pytest.approx(expected, rel=1e-5, abs=1e-5)
    assert len(traces) == 8
    assert float(step(tf.constant(X, tf.float32), scale=2.0)) == pytest.approx(X.sum() * 4, rel=1e-5)


def test_structures_in_and_out() -> None:
    @wh.function
    def step(batch, *rest, flag):
        x, y = batch["x"], batch["pair"][0]
        with wh.replica():
            mean = tf.reduce_mean(x)
        return {"mean": mean, "rows": (x * 2, [y]), "none": None, "word": "ok", "number": 3, "flag": flag, "rest": rest}

    batch = {"x": X, "pair": (X[:, 0], np.arange(3))}
    made = step(batch, tf.constant(7), "s", flag=True)
    assert float(made["mean"]) == pytest.approx(X.mean(), abs=1e-6)
    np.testing.assert_array_equal(made["rows"][0], X * 2)
    np.testing.assert_array_equal(made["rows"][1][0], X[:, 0])
    assert made["none"] is None
    word = made["word"]
    assert (word if isinstance(word, str) else word.numpy().decode()) == "ok"
    assert int(made["number"]) == 3
    assert bool(made["flag"])
    assert int(made["rest"][0]) == 7


def test_several_functions_share_variables() -> None:
    w = tf.Variable(tf.ones([4, 8]))

    @wh.function
    def split_step(x):
        with wh.split():
            loss = tf.reduce_sum(tf.matmul(x, w))
        w.assign_add(tf.ones([4, 8]))
        return loss

    @wh.function
    def whole_step(x):
        with wh.replica():
            return tf.reduce_sum(tf.matmul(x, w))

    for turn in range(1, 4):
        expected = X.sum() * 8 * turn
        assert float(whole_step(X)) == pytest.approx(expected, rel=1e-5)
        assert float(split_step(X)) == pytest.approx(expected, rel=1e-5)
        np.testing.assert_array_equal(w.numpy(), np.full([4, 8], turn + 1))


def test_a_step_inside_a_step_is_a_part_of_it() -> None:
    w = tf.Variable(3.0)

    @wh.function
    def inner(x):
        with wh.replica():
            return tf.reduce_sum(x) * w

    @wh.function
    def outer(x, deep=True):
        with tf.GradientTape() as tape:
            loss = inner(x)
        gradient = tape.gradient(loss, w)
        return loss, gradient, outer(x, False)[0] if deep else loss

    for _ in range(2):
        loss, gradient, again = (float(value) for value in outer(X))
        assert (loss, gradient, again) == pytest.approx((3 * X.sum(), X.sum(), 3 * X.sum()), rel=1e-5)
        assert float(inner(X)) == pytest.approx(loss, rel=1e-5)


def test_helpers_traced_before_during_and_after() -> None:
    w = tf.Variable(tf.ones([4, 8]))
    before = tf.function(lambda x: tf.reduce_sum(tf.matmul(x, w)))
    during = tf.function(lambda x: tf.reduce_sum(tf.matmul(x, w)))
    assert float(before(X)) == pytest.approx(8 * X.sum(), rel=1e-5)

    def train(scope):
        @wh.function
        def step(x):
            with scope():
                loss = before(x) + during(x) + tf.reduce_sum(tf.matmul(x, w))
            w.assign(w * 2)
            return loss

        return step

    factor = 8.0
    for scope in (wh.replica, wh.split, wh.replica):
        step = train(scope)
        for _ in range(2):
            assert float(step(X)) == pytest.approx(3 * factor * X.sum(), rel=1e-5)
            factor *= 2
            after = tf.function(lambda x: tf.reduce_sum(tf.matmul(x, w)))
            for helper in (before, during, after):
                assert float(helper(X)) == pytest.approx(factor * X.sum(), rel=1e-5)
            w.assign(w / 2)
            factor /= 2
            assert float(before(X)) == pytest.approx(factor * X.sum(), rel=1e-5)


def test_loops_branches_and_metrics_are_divided() -> None:
    keras.utils.set_random_seed(2)
    lstm, dense = keras.layers.LSTM(5), keras.layers.Dense(3)
    plain = keras.Sequential([keras.Input((6, 4)), lstm, dense])
    x = np.random.default_rng(1).normal(size=(8, 6, 4)).astype("float32")
    y = np.arange(8) % 3

    def make(model):
        optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), initial_scale=8.0)
        optimizer.build(model.trainable_variables)
        metric, mean = keras.metrics.SparseCategoricalAccuracy(), keras.metrics.Mean()
        loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

        def step(x, y):
            with tf.GradientTape() as tape:
                with wh.replica():
                    logits = model(x, training=True)
                loss = loss_of(y, logits)
                scaled = optimizer.scale_loss(loss)
            optimizer.apply_gradients(
                zip(tape.gradient(scaled, model.trainable_variables), model.trainable_variables, strict=True)
            )
            metric.update_state(y, logits)
            mean.update_state(loss)
            turns, count = tf.constant(0.0), tf.constant(0)
            while count < 3:
                turns += tf.reduce_sum(logits)
                count += 1
            sign = tf.cond(turns > 0, lambda: tf.reduce_max(logits), lambda: tf.reduce_min(logits))
            return loss, turns, sign, metric.result(), mean.result()

        return step

    spread = keras.models.clone_model(plain)
    spread.set_weights(plain.get_weights())
    alone, compiled = tf.function(make(plain)), wh.function(make(spread))
    for _ in range(3):
        for a, b in zip(compiled(x, y), alone(x, y), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    for a, b in zip(spread.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    assert "0 ops run whole on every device for want of a rule" in compiled.explain(x, y)
    assert max(share.flops / share.step_flops for share in compiled.program_for(x, y).shares()) < 0.4


def test_explain_names_bytes_ops_and_lines() -> None:
    w = tf.Variable(tf.ones([4, 8]))

    @wh.function
    def step(x):
        with tf.GradientTape() as tape, wh.replica():
            loss = tf.reduce_sum(tf.matmul(x, w) ** 2)
        w.assign_sub(tape.gradient(loss, w))
        return loss

    text = step.explain(X)
    assert "P -> B" in text
    assert "float32[4, 8]" in text
    assert "MatMul" in text
    assert "test_step.py:" in text
    np.testing.assert_array_equal(w, np.ones([4, 8]))  # nothing has run


def test_saved_models_concrete_functions_and_graph_defs(tmp_path) -> None:
    w = tf.Variable(tf.ones([4, 8]))
    plain = tf.function(lambda x: {"y": tf.matmul(x, w)}, input_signature=[tf.TensorSpec([None, 4], name="x")])
    expected = X @ np.ones([4, 8])
    np.testing.assert_allclose(wh.function(plain)(X)["y"], expected, rtol=1e-5)
    np.testing.assert_allclose(wh.function(plain.get_concrete_function())(X)["y"], expected, rtol=1e-5)
    module = tf.Module()
    module.w, module.serve = w, plain
    tf.saved_model.save(module, str(tmp_path / "m"), signatures=plain)
    loaded = tf.saved_model.load(str(tmp_path / "m"))
    signature = loaded.signatures["serving_default"]
    np.testing.assert_allclose(wh.function(signature)(x=X)["y"], expected, rtol=1e-5)
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, (None, 4), name="x")
        tf.reduce_sum(x * 2, name="total")
    old = wh.function(from_graph_def(graph.as_graph_def(), ["x"], {"total": "total"}))
    assert float(old(X)["total"]) == pytest.approx(2 * X.sum(), rel=1e-5)


def test_models_and_methods() -> None:
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    np.testing.assert_allclose(wh.function(model)(X), model(X), rtol=1e-5)

    class Trainer:
        def __init__(self) -> None:
            self.w = tf.Variable(2.0)

        @wh.function
        def step(self, x):
            return self.w * tf.reduce_sum(x)

    for trainer in (Trainer(), Trainer()):
        assert float(trainer.step(X)) == pytest.approx(2 * X.sum(), rel=1e-5)


def test_a_plan_is_saved_and_used_again(tmp_path) -> None:
    w = tf.Variable(tf.ones([4, 8]))

    def body(x):
        with wh.split():
            return tf.reduce_sum(tf.matmul(x, w))

    plan = wh.function(body).plan_for(tf.TensorSpec([8, 4]))
    plan.save(tmp_path / "step.plan")
    again = wh.function(body, plan=wh.Plan.load(tmp_path / "step.plan"))
    assert float(again(X)) == pytest.approx(8 * X.sum(), rel=1e-5)
    assert again.plan_for(X) == plan
    for given, kind in ((str(plan), "str"), (tmp_path / "step.plan", "PosixPath")):
        with pytest.raises(TypeError, match=rf"plan=.* is of type {kind}.*plan_for.*Plan\.parse.*Plan\.load"):
            wh.function(body, plan=given)


def test_a_step_that_is_a_method_gets_its_instance() -> None:
    @dataclasses.dataclass  # with __eq__ and so without __hash__
    class Trainer:
        weight: tf.Variable

        @wh.function
        def step(self, x):
            self.weight.assign_add(x)
            return self.weight * 2.0

    def use() -> tuple[list[float], bool, weakref.ref]:
        one, other = Trainer(tf.Variable(1.0)), Trainer(tf.Variable(10.0))
        results = [float(trainer.step(tf.constant(1.0))) for trainer in (one, other)]
        return results, one.step is one.step and one.step is not other.step, weakref.ref(one)

    results, own, gone = use()
    assert results == [4.0, 22.0]
    assert own
    gc.collect()
    assert gone() is None


def test_many_signatures_are_remarked_once(caplog) -> None:
    step = wh.function(lambda x: tf.reduce_sum(x))
    for rows in range(1, 12):
        step(tf.ones([rows, 4]))
    (record,) = [record for record in caplog.records if record.name == "whaleish"]
    for part in ("8 different signatures", "argument 0: float32[8, 4]", "Pad", "bucket_by_sequence_length"):
        assert part in record.getMessage()


def test_a_step_is_called_from_several_threads() -> None:
    """The first call, which compiles and makes the optimizer's slots, has a thread of its own, as have the others."""
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8)])
    twin = keras.models.clone_model(model)
    twin.set_weights(model.get_weights())
    optimizers = [keras.optimizers.SGD(0.1, momentum=0.5) for _ in range(2)]

    def make(model, optimizer):
        def step(x):
            with tf.GradientTape() as tape, wh.split():
                loss = tf.reduce_mean(model(x) ** 2)
            weights = model.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
            return loss

        return step

    step, plain = wh.function(make(model, optimizers[0])), tf.function(make(twin, optimizers[1]))
    losses: list[float] = []
    for _ in range(3):
        thread = threading.Thread(target=lambda: losses.append(float(step(X))))
        thread.start()
        thread.join()
    losses.append(float(step(X)))
    np.testing.assert_allclose(losses, [plain(X) for _ in range(4)], rtol=1e-5)
    slots = [variable.value for variable in optimizers[0].variables if "momentum" in variable.path]
    assert all(slot.in_parts for slot in slots)  # also those were made by the creator


def test_what_is_made_after_init_in_a_thread_can_be_divided() -> None:
    made: list[bool] = []

    def work() -> None:
        wh.init(virtual_devices=4)
        w = tf.Variable(tf.ones([4, 8]))

        @wh.function
        def step(x):
            with wh.split():
                return tf.reduce_sum(tf.matmul(x, w))

        assert float(step(X)) == pytest.approx(8 * X.sum(), rel=1e-5)
        made.append(w.in_parts)

    for _ in range(2):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert made == [True, True]


def test_a_variable_whose_value_nothing_needs():
    idle, used = tf.Variable([1.0]), tf.Variable([2.0])

    @wh.function
    def step(x):
        tf.identity(idle)
        return x * used

    np.testing.assert_array_equal(step(np.ones(1, "float32")), [2.0])
