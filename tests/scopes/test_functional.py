"""Scopes round the building of functional Keras models: each call is in the scopes that it was built in."""

from __future__ import annotations

import keras
import pytest
import tensorflow as tf
from keras import layers

from tests.scopes.test_scopes import paths
from whaleish import scopes as wh
from whaleish.capture import capture
from whaleish.scopes import ScopeError


def scopes_of(model, *widths):
    """Op type -> scopes of its ops, in a step that calls the model on a row of each width."""
    specs = [tf.TensorSpec((2, width)) for width in widths]
    return paths(capture(lambda *xs: model(xs if len(xs) > 1 else xs[0]), *specs))


def test_calls_are_inside_the_scopes_of_the_building():
    x = keras.Input((4,))
    with wh.replica(2):
        hidden = layers.Dense(4, "relu")(x)
        with wh.split(2):
            hidden = layers.Dense(4, "tanh")(hidden)
        hidden = keras.ops.exp(hidden)
    found = scopes_of(keras.Model(x, layers.Dense(3, "sigmoid")(hidden)), 4)
    assert found["Relu"] == found["Exp"] == ["replica#0(degree=2)"]
    assert found["Tanh"] == ["replica#0(degree=2)/split#1(degree=2)"]
    assert found["Sigmoid"] == [""]


def test_scopes_of_a_shared_layer_are_those_of_each_call():
    x, shared = keras.Input((4,)), layers.Dense(4, "relu")
    with wh.stage():
        hidden = shared(x)
    with wh.stage():
        hidden = shared(hidden)
    model = keras.Model(x, shared(hidden))
    assert scopes_of(model, 4)["Relu"] == ["stage#0", "stage#1", ""]
    part = keras.Model(x, hidden)
    assert scopes_of(part, 4)["Relu"] == ["stage#0", "stage#1"]


def test_a_scope_entered_later_is_numbered_later_though_it_runs_earlier():
    x, mask = keras.Input((4,)), keras.Input((3,))
    with wh.stage():
        hidden = layers.Dense(4, "relu")(x)
    with wh.stage():
        weight = mask
        for kind in ("tanh", "sigmoid", "softplus"):
            weight = layers.Dense(4, kind)(weight)
        out = layers.Add()([hidden, weight])
    found = scopes_of(keras.Model([x, mask], out), 4, 3)
    assert found["Relu"] == ["stage#0"]
    assert found["Tanh"] == ["stage#1"]


def test_models_inside_models_are_inside_both_scopes():
    with wh.split(2):
        inner = keras.Sequential([keras.Input((4,)), layers.Dense(4, "relu")])
    x = keras.Input((4,))
    with wh.replica(2):
        hidden = inner(x)
    found = scopes_of(keras.Model(x, inner(hidden)), 4)
    assert found["Relu"] == ["replica#1(degree=2)/split#0(degree=2)", "split#0(degree=2)"]


def test_a_model_built_and_called_in_a_scope_is_in_it_once():
    x = keras.Input((4,))
    with wh.pipeline(2):
        with wh.stage():
            hidden = keras.Sequential([keras.Input((4,)), layers.Dense(4, "relu")])(x)
        with wh.stage():
            out = keras.Sequential([keras.Input((4,)), layers.Dense(4, "tanh")])(hidden)
    found = scopes_of(keras.Model(x, out), 4)
    assert [path.split("/")[1] for path in (*found["Relu"], *found["Tanh"])] == ["stage#1", "stage#2"]


@pytest.mark.parametrize("first", [[keras.Input((4,))], []], ids=["built at once", "built when called"])
def test_layers_of_a_sequential_are_inside_the_scopes_of_their_adding(first):
    model = keras.Sequential(first)
    with wh.stage():
        model.add(layers.Dense(4, "relu"))
        model.add(layers.Dense(4, "tanh"))
    with wh.stage():
        model.add(layers.Dense(4, "sigmoid"))
    model.add(layers.Dense(4, "softplus"))
    found = scopes_of(model, 4)
    assert found["Relu"] == found["Tanh"] == ["stage#0"]
    assert found["Sigmoid"] == ["stage#1"]
    assert found["Softplus"] == [""]


def test_a_clone_keeps_the_scopes():
    x = keras.Input((4,))
    with wh.stage():
        hidden = layers.Dense(4, "relu")(x)
    model = keras.Model(x, layers.Dense(4, "tanh")(hidden))
    found = scopes_of(keras.models.clone_model(model), 4)
    assert found["Relu"] == ["stage#0"]
    assert found["Tanh"] == [""]


def test_a_model_called_twice_is_in_the_same_scopes():
    x = keras.Input((4,))
    with wh.stage():
        hidden = layers.Dense(4, "relu")(x)
    model = keras.Model(x, hidden)
    found = paths(capture(lambda x: model(model(x)), tf.TensorSpec((2, 4))))
    assert found["Relu"] == ["stage#0", "stage#0"]


def test_scopes_that_make_no_sense_inside_each_other_are_refused():
    with wh.stage():
        inner = keras.Sequential([keras.Input((4,)), layers.Dense(4)])
    x = keras.Input((4,))
    with pytest.raises(ScopeError, match="end the outer one first"), wh.stage(), wh.stage():
        layers.Dense(4)(x)
    with wh.stage():
        out = inner(x)
    with pytest.raises(ScopeError, match="end the outer one first"):
        scopes_of(keras.Model(x, out), 4)


def test_outside_a_step_the_model_is_the_plain_one():
    x = keras.Input((4,))
    with wh.stage():
        out = layers.Dense(4, "relu")(x)
    model = keras.Model(x, out)
    rows = tf.ones((2, 4))
    assert model(rows).shape == model.predict(rows, verbose=0).shape == (2, 4)


def test_an_empty_scope_is_refused():
    with pytest.raises(ScopeError, match=r"wh.stage\(\) was entered outside any traced function"), wh.stage():
        layers.Dense(4)
