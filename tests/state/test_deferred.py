"""Deferred variables: whoever needs the value early gets it; until then there is no storage; and then any layout."""

import copy
import pickle
import threading

import keras
import numpy as np
import pytest
import tensorflow as tf

import whaleish as wh
from tests.state.test_variable import WRITES
from whaleish import world
from whaleish.mesh import Axis, Mesh
from whaleish.sbp import B, S, parse_layout
from whaleish.state import lay_out, recipe, settle_all, storage
from whaleish.state.tf_private import ResourceVariable

LINE = Mesh((Axis("a", 3),))


@pytest.fixture(autouse=True)
def _all_are_large(monkeypatch):
    world.init(virtual_devices=4)  # whatever ran before may have cleared Keras's session
    monkeypatch.setattr(recipe, "SMALL", 8)


def initial():
    return tf.random.stateless_normal([7, 5], [1, 2])


def value():
    return initial().numpy()


def make(**keywords):
    with wh.deferred():
        variable = tf.Variable(initial, **keywords)
    assert variable.deferred
    assert not tf.raw_ops.VarIsInitializedOp(resource=variable.handle)
    return variable


READS = {
    "value": lambda v: v.value(),
    "read_value": lambda v: v.read_value(),
    "numpy": lambda v: v.numpy(),
    "asarray": lambda v: np.asarray(v),
    "convert": lambda v: tf.convert_to_tensor(v),
    "op": lambda v: tf.identity(v),
    "arithmetic": lambda v: v + 0.0,
    "matmul": lambda v: tf.matmul(v, tf.eye(5)),
    "gather": lambda v: tf.gather(v, range(7)),
    "sparse_read": lambda v: v.sparse_read(range(7)),
    "gather_nd": lambda v: v.gather_nd([[i] for i in range(7)]),
    "slice": lambda v: v[:],
    "wh.gather": lambda v: wh.gather(v),
    "deepcopy": lambda v: copy.deepcopy(v),
    "pickle": lambda v: pickle.loads(pickle.dumps(v)),
    "function": lambda v: tf.function(lambda: v + 0.0, autograph=False)(),
    "function in a function": lambda v: tf.function(lambda: tf.function(lambda: v + 0.0)(), autograph=False)(),
    "dataset": lambda v: next(iter(tf.data.Dataset.range(1).map(lambda _: v + 0.0))),
    "another's initializer": lambda v: tf.Variable(lambda: v * 1.0),
    "another's deferred initializer": lambda v: another(v),
    "initialise": lambda v: (v.initialise(), v)[1],
}


def another(v):
    with wh.deferred():
        other = tf.Variable(lambda: v * 1.0)
    assert not other.deferred
    assert not v.deferred
    return other


@pytest.mark.parametrize("read", READS)
def test_reading_makes_the_value(read):
    v = make()
    np.testing.assert_array_equal(READS[read](v), value())
    assert not v.deferred
    np.testing.assert_array_equal(v, value())
    np.testing.assert_array_equal(tf.raw_ops.ReadVariableOp(resource=v.handle, dtype=v.dtype), value())


def test_what_is_known_without_the_value():
    v = make(name="kernel", trainable=False, aggregation=tf.VariableAggregation.MEAN)
    plain = ResourceVariable(initial, name="kernel", trainable=False, aggregation=tf.VariableAggregation.MEAN)
    known = ["name", "shape", "dtype", "trainable", "aggregation", "synchronization", "constraint", "_shared_name"]
    for about in known:
        assert getattr(v, about) == getattr(plain, about), about
    assert v.device == plain.device
    assert v.is_initialized()
    assert v.ref() == v.ref()
    assert storage(v).handles == (v.handle,)
    assert v.deferred
    assert "numpy=" in repr(v)
    assert repr(value()[0, 0])[11:17] in repr(v)


def test_names_and_devices_are_those_of_where_it_is_made():
    with tf.name_scope("tower"), tf.device("/device:CPU:2"):
        v, plain = make(name="kernel"), tf.Variable(initial, name="kernel")
    assert v.name == plain.name == "tower/kernel:0"
    assert v.device == plain.device
    assert v.device.endswith("CPU:2")
    np.testing.assert_array_equal(v, value())
    assert v.value().device == plain.value().device


def test_numbers_of_one_element():
    with wh.deferred():
        v = tf.Variable(lambda: tf.fill([1, 4], 3.0))
    assert float(v[0, 0]) == 3


def test_gradients_see_it():
    for persistent in (False, True):
        v = make()
        with tf.GradientTape(persistent=persistent) as tape:
            loss = tf.reduce_sum(v * v)
        np.testing.assert_allclose(tape.gradient(loss, v), 2 * value())
    v = make()
    function = tf.function(lambda: tf.reduce_sum(v * v), autograph=False)
    with tf.GradientTape() as tape:
        loss = function()
    np.testing.assert_allclose(tape.gradient(loss, v), 2 * value())


@pytest.mark.parametrize("write", WRITES)
def test_writes(write):
    v, plain = make(), ResourceVariable(initial)
    expected, got = WRITES[write](plain), WRITES[write](v)
    np.testing.assert_array_equal(v, plain)
    assert (got is None) == (expected is None)
    assert not v.deferred


def test_assigning_makes_no_value(monkeypatch):
    monkeypatch.setattr(recipe.Recipe, "value", None)
    v = make()
    v.assign(np.full([7, 5], 2.0))
    np.testing.assert_array_equal(v, np.full([7, 5], 2.0))
    lay_out(v, (S(0),), LINE)
    np.testing.assert_array_equal(v, np.full([7, 5], 2.0))


def test_wrong_shapes_are_refused_and_change_nothing():
    v = make()
    with pytest.raises(ValueError, match=r"\(7, 5\)"):
        v.assign(tf.ones([5, 7]))
    np.testing.assert_array_equal(v, value())


def test_the_raw_handle_raises_and_never_lies():
    v = make()
    with pytest.raises(tf.errors.FailedPreconditionError):
        tf.raw_ops.ReadVariableOp(resource=v.handle, dtype=tf.float32)
    with pytest.raises(tf.errors.FailedPreconditionError):
        tf.function(lambda x: x + 1, autograph=False)(v)
    np.testing.assert_array_equal(v, value())


def test_plain_functions_that_were_traced_before_go_on():
    v = make()
    read = tf.function(lambda: v * 2, autograph=False)
    add = tf.function(lambda: v.assign_add(tf.ones_like(v)), autograph=False)
    read.get_concrete_function()
    add.get_concrete_function()
    assert v.deferred
    add()
    np.testing.assert_array_equal(read(), 2 * (value() + 1))
    lay_out(v, (S(1),), LINE)
    np.testing.assert_array_equal(read(), 2 * (value() + 1))
    add()
    settle_all()
    np.testing.assert_array_equal(v, (value() + 1) + 1)
    other = make()
    read = tf.function(lambda: other * 2, autograph=False)
    read.get_concrete_function()
    lay_out(other, (S(0),), LINE)
    np.testing.assert_array_equal(read(), 2 * value())


@pytest.mark.parametrize("layout", ["S(0)", "S(1)", "P", "B"])
def test_laying_out_makes_the_parts(layout):
    v = make()
    handle = v.handle
    lay_out(v, parse_layout(layout), LINE)
    assert not v.deferred
    assert v.in_parts or layout == "B"
    np.testing.assert_array_equal(v, value())
    lay_out(v, (B,), Mesh((Axis("a", 4),)))
    assert v.handle is handle
    assert not v.in_parts
    np.testing.assert_array_equal(tf.raw_ops.ReadVariableOp(resource=handle, dtype=v.dtype), value())


def test_whole_it_ends_in_place():
    v = make()
    handle = v.handle
    stored = lay_out(v, (B,), Mesh((Axis("a", 4),)))
    assert stored.handles == (handle,) * 4
    assert not v.in_parts
    assert not v.deferred
    np.testing.assert_array_equal(tf.raw_ops.ReadVariableOp(resource=handle, dtype=v.dtype), value())


def dense_model(deferred):
    keras.utils.set_random_seed(1)

    def build():
        model = keras.Sequential([keras.layers.Input((6,)), keras.layers.Dense(9), keras.layers.Dense(2)])
        model.compile("adam", "mse", metrics=["mae"])
        model.optimizer.build(model.trainable_variables)
        return model

    if not deferred:
        return build()
    with wh.deferred():
        model = build()
    assert model.layers[0].kernel.value.deferred
    assert model.optimizer.variables[2].value.deferred
    return model


def all_values(model):
    return [np.asarray(v) for v in [*model.weights, *model.optimizer.variables]]


def equal(model, other):
    for a, b in zip(all_values(model), all_values(other), strict=True):
        np.testing.assert_array_equal(a, b)


X, Y = np.linspace(-1, 1, 48).reshape(8, 6), np.linspace(0, 1, 16).reshape(8, 2)
USES = {
    "get_weights": lambda model, path: model.get_weights(),
    "set_weights": lambda model, path: model.set_weights([w + 1 for w in model.get_weights()]),
    "call": lambda model, path: np.asarray(model(X)),
    "predict": lambda model, path: model.predict(X, verbose=0),
    "evaluate": lambda model, path: model.evaluate(X, Y, verbose=0),
    "fit": lambda model, path: model.fit(X, Y, epochs=2, verbose=0).history["loss"],
    "save": lambda model, path: model.save(path / "model.keras"),
    "save_weights": lambda model, path: model.save_weights(path / "some.weights.h5"),
    "export": lambda model, path: model.export(path / "exported", verbose=False),
    "checkpoint": lambda model, path: tf.train.Checkpoint(model=model, o=model.optimizer).write(str(path / "c")) and 0,
    "clone": lambda model, path: keras.models.clone_model(model).set_weights(model.get_weights()),
    "count_params": lambda model, path: model.count_params(),
    "deepcopy": lambda model, path: copy.deepcopy(model).get_weights(),
}


@pytest.mark.parametrize("use", USES)
def test_what_keras_does_with_a_model(use, tmp_path):
    model, plain = dense_model(True), dense_model(False)
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    given = [USES[use](model, tmp_path / "a"), USES[use](plain, tmp_path / "b")]
    for a, b in zip(*map(tf.nest.flatten, given), strict=True):
        np.testing.assert_array_equal(a, b)
    equal(model, plain)


@pytest.mark.parametrize("kind", ["checkpoint", "h5", "keras", "created later"])
def test_restoring_into_a_deferred_model_makes_no_value(kind, tmp_path, monkeypatch):
    source = dense_model(True)
    source.fit(X, Y, verbose=0)
    if kind == "checkpoint":
        path = tf.train.Checkpoint(model=source, optimizer=source.optimizer).write(str(tmp_path / "c"))
    elif kind == "h5":
        source.save_weights(path := tmp_path / "some.weights.h5")
    elif kind == "keras":
        source.save(path := tmp_path / "some.keras")
    else:
        path = tf.train.Checkpoint(v=source.layers[0].kernel.value).write(str(tmp_path / "c"))
    monkeypatch.setattr(recipe.Recipe, "value", None)
    if kind == "keras":
        with wh.deferred():
            other = keras.models.load_model(path)
        return equal(source, other)
    if kind == "created later":
        module = tf.train.Checkpoint()
        status = module.read(path)
        with wh.deferred():
            module.v = tf.Variable(lambda: tf.zeros([6, 9]))
        status.assert_existing_objects_matched()
        return np.testing.assert_array_equal(module.v, source.layers[0].kernel)
    other = dense_model(True)
    if kind == "checkpoint":
        tf.train.Checkpoint(model=other, optimizer=other.optimizer).read(path).assert_consumed()
        return equal(source, other)
    other.load_weights(path)
    for a, b in zip(source.weights, other.weights, strict=True):
        np.testing.assert_array_equal(a, b)


def test_entered_in_a_function_it_raises():
    @tf.function
    def function():
        with wh.deferred():
            return tf.constant(1)

    @wh.function
    def step(x):
        with wh.deferred():
            return x + 1

    for call in (function, lambda: step(np.ones([4]))):
        with pytest.raises(RuntimeError, match="plain Python"):
            call()


def test_it_ends_with_the_with_also_after_errors():
    with pytest.raises(KeyError), wh.deferred():
        raise KeyError
    assert not tf.Variable(initial).deferred
    with wh.deferred(), wh.deferred():
        pass
    with wh.deferred():
        with wh.deferred():
            pass
        assert tf.Variable(initial).deferred


def test_other_threads_are_left_alone():
    made = []

    def build():
        world.init(virtual_devices=4)
        made.append(tf.Variable(initial))

    with wh.deferred():
        thread = threading.Thread(target=build)
        thread.start()
        thread.join()
    assert not made[0].deferred
    np.testing.assert_array_equal(made[0], value())


def test_a_deferred_variable_is_laid_out_by_a_step_on_another_thread():
    v = make()
    step = wh.function(lambda x: tf.reduce_sum(x @ v))
    x, got = np.ones([4, 7], "float32"), []
    thread = threading.Thread(target=lambda: got.append(float(step(x))))
    thread.start()
    thread.join()
    np.testing.assert_allclose(got, [np.sum(x @ value())], rtol=1e-5)


def test_before_init_it_says_so():
    world._reset()
    try:
        with pytest.raises(RuntimeError, match=r"wh.init\(\)"), wh.deferred():
            pass
    finally:
        world.init(virtual_devices=4)


def test_after_clear_session_it_puts_the_creator_back():
    keras.utils.clear_session()
    assert make().deferred
