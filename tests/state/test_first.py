"""First values in one buffer are the values that Keras makes, and only what is known to be pure is made so."""

import keras
import numpy as np
import pytest

from whaleish import world
from whaleish.state import first

SHAPE = (96, 64)


@pytest.fixture(autouse=True)
def _devices():
    world.init(virtual_devices=4)  # whatever ran before may have cleared Keras's session


@pytest.fixture
def small_is_large(monkeypatch):
    """Counts what is computed in place."""
    made = []
    in_place = first._in_place
    monkeypatch.setattr(first, "LARGE", 1000)
    monkeypatch.setattr(first, "_in_place", lambda initial: made.append(1) or in_place(initial))
    return made


@pytest.mark.parametrize("initializer", first._PURE, ids=lambda cls: cls.__name__)
def test_the_same_bits(small_is_large, initializer):
    value = keras.Variable(initializer(seed=3), SHAPE, "float32").numpy()
    assert small_is_large
    np.testing.assert_array_equal(value, initializer(seed=3)(SHAPE, "float32"))


def test_unseeded_layers_too(small_is_large, monkeypatch):
    keras.utils.set_random_seed(4)
    made = keras.Sequential([keras.Input((96,)), keras.layers.Dense(64)]).get_weights()
    assert len(small_is_large) == 1
    keras.utils.set_random_seed(4)
    small_is_large.clear()
    monkeypatch.setattr(first, "LARGE", 10**9)
    plain = keras.Sequential([keras.Input((96,)), keras.layers.Dense(64)]).get_weights()
    assert not small_is_large
    for a, b in zip(made, plain, strict=True):
        np.testing.assert_array_equal(a, b)


class Counting(keras.initializers.GlorotUniform):
    calls = 0

    def __call__(self, *arguments, **keywords):
        type(self).calls += 1
        return super().__call__(*arguments, **keywords)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Counting(seed=3),
        lambda: lambda shape, dtype: np.ones(shape, dtype),
        lambda: keras.initializers.GlorotUniform(seed=keras.random.SeedGenerator(3)),
        lambda: "zeros",
    ],
    ids=["subclass", "function", "seed generator", "zeros"],
)
def test_others_are_left_alone(small_is_large, make):
    keras.Variable(make(), SHAPE, "float32")
    assert not small_is_large
    assert Counting.calls <= 1


def test_small_ones_are_left_alone(small_is_large):
    keras.Variable(keras.initializers.GlorotUniform(seed=3), (3, 3), "float32")
    assert not small_is_large
