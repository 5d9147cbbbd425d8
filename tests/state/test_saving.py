"""Checkpoints and Keras's files see one logical tensor, whatever the layout, and restore into any layout."""

import numpy as np
import pytest
import tensorflow as tf

from whaleish import world
from whaleish.mesh import Axis, Mesh
from whaleish.sbp import B, S
from whaleish.state import LaidOutVariable, lay_out

keras = pytest.importorskip("keras")
MESH = Mesh((Axis("a", 4),))
PLACES = [((S(0),), MESH), ((B,), Mesh((Axis("a", 2),), (2, 3)))]  # in parts; whole on some devices


@pytest.fixture(autouse=True)
def _devices():
    world.init(virtual_devices=4)


def make_model(split: bool):
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.layers.Input((6,)), keras.layers.Dense(9), keras.layers.Dense(2)])
    model.compile("adam", "mse")
    model.fit(np.ones([8, 6]), np.ones([8, 2]), verbose=0, epochs=2)
    if split:
        for number, variable in enumerate([*model.weights, *model.optimizer.variables]):
            lay_out(variable.value, *PLACES[number % 2 if len(variable.shape) else 1])
    return model


def all_values(model):
    return [np.asarray(v) for v in [*model.weights, *model.optimizer.variables]]


def test_every_variable_of_keras_can_be_laid_out():
    model = keras.Sequential(
        [keras.layers.Input((6,)), keras.layers.Dense(9), keras.layers.BatchNormalization(), keras.layers.Dropout(0.1)]
    )
    model.compile("adam", "mse", metrics=["mae"])
    model.build((None, 6))
    model.optimizer.build(model.trainable_variables)
    assert all(isinstance(v.value, LaidOutVariable) for v in [*model.variables, *model.optimizer.variables])


@pytest.mark.parametrize(("saved", "loaded"), [(True, False), (False, True), (True, True)])
def test_checkpoint(tmp_path, saved, loaded):
    model, other = make_model(saved), make_model(loaded)
    other.set_weights([w * 0 for w in other.get_weights()])
    path = tf.train.Checkpoint(model=model, optimizer=model.optimizer).write(str(tmp_path / "c"))
    plain = make_model(False)
    reference = tf.train.Checkpoint(model=plain, optimizer=plain.optimizer).write(str(tmp_path / "d"))
    assert tf.train.list_variables(path) == tf.train.list_variables(reference)
    tf.train.Checkpoint(model=other, optimizer=other.optimizer).read(path).assert_existing_objects_matched()
    for a, b in zip(all_values(model), all_values(other), strict=True):
        np.testing.assert_array_equal(a, b)
    assert {v.value.in_parts for v in [*other.weights, *other.optimizer.variables]} == {loaded}


@pytest.mark.parametrize(("saved", "loaded"), [(True, False), (False, True), (True, True)])
def test_keras_files(tmp_path, saved, loaded):
    model, other = make_model(saved), make_model(loaded)
    other.set_weights([w * 0 for w in other.get_weights()])
    model.save_weights(tmp_path / "m.weights.h5")
    other.load_weights(tmp_path / "m.weights.h5")
    for a, b in zip(all_values(model), all_values(other), strict=True):
        np.testing.assert_array_equal(a, b)
    model.save(tmp_path / "m.keras")
    again = keras.saving.load_model(tmp_path / "m.keras")
    for a, b in zip(all_values(model), all_values(again), strict=True):
        np.testing.assert_array_equal(a, b)


def test_what_users_do_with_a_model_in_parts(tmp_path):
    plain, model = make_model(False), make_model(True)
    x = np.random.default_rng(0).normal(size=(5, 6)).astype("float32")
    np.testing.assert_allclose(model(x), plain(x), rtol=1e-6)
    np.testing.assert_allclose(model.predict(x, verbose=0), plain.predict(x, verbose=0), rtol=1e-6)
    for one in (plain, model):
        one.fit(x, np.ones([5, 2]), verbose=0)
        one.set_weights([w + 1 for w in one.get_weights()])
        one.weights[0].assign(one.weights[0] * 2)
    for a, b in zip(all_values(model), all_values(plain), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)
    assert all(v.value.in_parts for v in [*model.weights, *model.optimizer.variables])
    model.export(tmp_path / "exported", verbose=False)
    served = tf.saved_model.load(tmp_path / "exported")
    np.testing.assert_allclose(served.serve(x), model(x), rtol=1e-5)
    for weight in model.weights:
        lay_out(weight.value, (B,), MESH)
    np.testing.assert_allclose(model(x), served.serve(x), rtol=1e-5)
