"""A distributed model takes what Keras takes, and batches of any size."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import whaleish as wh
from tests.keras.registry import classes, numbers
from tests.keras.test_distribute import REGISTRY

X, Y = numbers(8), classes(3)


class Batches(keras.utils.PyDataset):
    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int):
        rows = slice(8 * index, 8 * index + 8)
        return X[rows], Y[rows]


def generator():
    for start in range(0, 22, 8):
        yield X[start : start + 8], Y[start : start + 8]


GIVEN = {
    "numpy": lambda: {"x": X, "y": Y, "batch_size": 8},
    "tensors": lambda: {"x": tf.constant(X), "y": tf.constant(Y), "batch_size": 8},
    "dataset": lambda: {"x": tf.data.Dataset.from_tensor_slices((X, Y)).batch(8)},
    "endless dataset": lambda: {
        "x": tf.data.Dataset.from_tensor_slices((X, Y)).repeat().batch(8),
        "steps_per_epoch": 3,
    },
    "of unknown size": lambda: {
        "x": tf.data.Dataset.from_tensor_slices((X, Y)).filter(lambda x, y: y < 2).batch(8),
    },
    "of unknown shape": lambda: {
        "x": tf.data.Dataset.from_generator(
            generator, output_signature=(tf.TensorSpec((None, 8)), tf.TensorSpec((None,), "int64"))
        ),
    },
    "PyDataset": lambda: {"x": Batches()},
    "generator": lambda: {"x": generator(), "steps_per_epoch": 2},
    "weights": lambda: {"x": X, "y": Y, "sample_weight": np.abs(numbers(seed=4))[:, None][:, 0], "batch_size": 8},
}


def trained(given, distributed: bool, epochs: int = 1):
    keras.utils.set_random_seed(2)
    model, _ = REGISTRY["mlp"]()
    if distributed:
        wh.keras.distribute(model)
    history = model.fit(**given(), epochs=epochs, verbose=0, shuffle=False)
    return history.history["loss"], [weight.numpy() for weight in model.weights]


def check(given, epochs: int = 1) -> None:
    (loss, weights), (found, own) = trained(given, False, epochs), trained(given, True, epochs)
    np.testing.assert_allclose(found, loss, rtol=1e-5)
    for ours, theirs in zip(own, weights, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", GIVEN)
def test_as_on_one_device(kind: str) -> None:
    check(GIVEN[kind])


@pytest.mark.parametrize("rows", [1, 3, 9])
def test_fewer_rows_than_devices(rows: int) -> None:
    check(lambda: {"x": X[:rows], "y": Y[:rows], "batch_size": 8}, 2)


def test_batches_by_hand() -> None:
    results = []
    for distributed in (False, True):
        keras.utils.set_random_seed(2)
        model, _ = REGISTRY["mlp"]()
        if distributed:
            wh.keras.distribute(model)
        results.append(
            [
                *model.train_on_batch(X, Y, class_weight={0: 1.0, 1: 2.0, 2: 0.5}),
                *model.train_on_batch(X[:9], Y[:9]),
                *model.test_on_batch(X, Y),
                *model.predict_on_batch(X).ravel(),
                *np.ravel(model(X)),
            ]
        )
    np.testing.assert_allclose(results[1], results[0], rtol=1e-4, atol=1e-5)


def test_compiled_again() -> None:
    """The new optimizer and loss count; weights go on."""
    results = []
    for distributed in (False, True):
        keras.utils.set_random_seed(2)
        model, _ = REGISTRY["mlp"]()
        if distributed:
            wh.keras.distribute(model)
        model.fit(X, Y, batch_size=8, verbose=0, shuffle=False)
        model.layers[0].trainable = False
        model.compile(keras.optimizers.Adam(0.01), "sparse_categorical_crossentropy")
        model.fit(X, Y, batch_size=8, verbose=0, shuffle=False)
        results.append([weight.numpy() for weight in model.weights])
    for ours, theirs in zip(results[1], results[0], strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-5)


def test_saved_as_ever(tmp_path) -> None:
    """What a distributed model saves plain Keras loads and goes on with; and the other way round."""
    model, _ = REGISTRY["cnn"]()
    x = numbers(8, 8, 2)
    wh.keras.distribute(model).fit(x, Y, batch_size=8, verbose=0)
    model.save(tmp_path / "model.keras")
    plain = keras.models.load_model(tmp_path / "model.keras")
    assert type(plain) is keras.Sequential
    again = wh.keras.distribute(keras.models.load_model(tmp_path / "model.keras"))
    np.testing.assert_allclose(plain.predict(x, verbose=0), model.predict(x, verbose=0), rtol=1e-4, atol=1e-5)
    expected = plain.fit(x, Y, batch_size=8, verbose=0, shuffle=False).history["loss"]
    found = again.fit(x, Y, batch_size=8, verbose=0, shuffle=False).history["loss"]
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    model.export(tmp_path / "exported", verbose=False)
    loaded = tf.saved_model.load(tmp_path / "exported")
    np.testing.assert_allclose(loaded.serve(x), model.predict(x, verbose=0), rtol=1e-4, atol=1e-5)


def test_weights_split_by_rules() -> None:
    results = []
    for distributed in (False, True):
        keras.utils.set_random_seed(2)
        model, _ = REGISTRY["mlp"]()
        if distributed:
            wh.keras.distribute(model, rules={"dense": wh.split()})
        history = model.fit(X, Y, batch_size=8, epochs=2, verbose=0, shuffle=False)
        results.append((history.history["loss"], model.evaluate(X, Y, verbose=0), model.predict(X, verbose=0)))
    np.testing.assert_allclose(results[1][0], results[0][0], rtol=1e-5)
    np.testing.assert_allclose(results[1][1], results[0][1], rtol=1e-5)
    np.testing.assert_allclose(results[1][2], results[0][2], rtol=1e-4, atol=1e-5)
    assert any(weight.value.in_parts for weight in model.weights)


@pytest.mark.parametrize("given", ["a model", None, keras.layers.Dense(3)])
def test_no_model(given) -> None:
    with pytest.raises(TypeError, match=r"give a keras\.Model"):
        wh.keras.distribute(given)


def test_twice() -> None:
    model, _ = REGISTRY["mlp"]()
    wh.keras.distribute(model)
    with pytest.raises(ValueError, match="is distributed already"):
        wh.keras.distribute(model)


def test_not_compiled() -> None:
    model = wh.keras.distribute(keras.Sequential([keras.Input((8,)), keras.layers.Dense(3)]))
    with pytest.raises(ValueError, match="compile"):
        model.fit(X, Y, verbose=0)
    assert model.predict(X, verbose=0).shape == (22, 3)


@pytest.mark.parametrize("option", ["run_eagerly", "jit_compile"])
def test_ways_to_run_that_cannot_be_divided(option: str) -> None:
    model, _ = REGISTRY["mlp"]()
    wh.keras.distribute(model)
    model.compile("sgd", "mse", **{option: True})
    with pytest.raises(ValueError, match=f"compiled with {option}=True"):
        model.fit(X, Y, verbose=0)


def test_a_rule_that_is_found_nowhere() -> None:
    model, _ = REGISTRY["mlp"]()
    wh.keras.distribute(model, rules={"encoder/dens_1": wh.split()})
    with pytest.raises(ValueError, match="'encoder/dens_1' is found in the name of no op; the nearest are in dense_"):
        model.fit(X, Y, verbose=0)
