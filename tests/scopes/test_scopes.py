"""Scopes: their text, their arguments, how they nest, and where they may be entered."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from whaleish import scopes as wh
from whaleish.capture import capture
from whaleish.graph import Scope
from whaleish.scopes import ScopeError, check, encode, parse


def paths(captured):
    """Op type -> texts of the scopes round ops of that type."""
    found = {}
    for op in captured.graph.ops:
        found.setdefault(op.type, []).append(encode(captured.graph.scopes[op.scope]))
    return found


@pytest.mark.parametrize(
    "path",
    [
        (),
        (Scope("replica", 0),),
        (Scope("replica", 0, (("degree", 2), ("devices", (0, 1, 2, 3)))), Scope("split", 12, (("dim", -1),))),
        (Scope("pipeline", 1, (("micro_batches", 8), ("schedule", "interleaved(2)"))), Scope("stage", 2)),
        (Scope("layout", 3, (("text", 'S(0),B / it\'s "(" quoted'),)), Scope("auto", 4)),
    ],
)
def test_text_parses_back(path):
    assert parse(encode(path)) == path


def test_text_that_is_no_path_is_refused():
    for text in ("replica", "replica#0/", "replica#0(degree=2", "replica#0 split#1"):
        with pytest.raises(ValueError, match="is not a path of scopes"):
            parse(text)


def test_options_are_the_arguments_that_are_not_defaults():
    assert str(wh.replica()) == "wh.replica()"
    assert str(wh.replica(2, range(4), zero=1)) == "wh.replica(degree=2, devices=(0, 1, 2, 3), zero=1)"
    assert wh.split(dim=np.int64(-1)).options == (("dim", -1),)
    assert wh.pipeline(8).options == (("micro_batches", 8),)
    assert wh.stage([3, 4]).options == (("devices", (3, 4)),)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: wh.replica(0), r"wh.replica\(degree=0\): give an integer of at least 1"),
        (lambda: wh.replica(True), r"degree=True"),
        (lambda: wh.replica(zero=4), r"zero is 0, 1, 2 or 3"),
        (lambda: wh.split(dim=1.0), r"dim is an integer"),
        (lambda: wh.stage([0, 0]), r"devices=\[0, 0\]\): give a list or range of different device numbers"),
        (lambda: wh.stage(3), r"devices=3"),
        (lambda: wh.stage("GPU:0"), r"devices='GPU:0'"),
        (lambda: wh.split(3, devices=range(4)), r"4 devices cannot be dealt out to 3 parts"),
        (lambda: wh.pipeline(0), r"micro_batches=0"),
        (lambda: wh.replica(np.array([1, 2])), r"degree=array\(\[1, 2\]\)\): give an integer of at least 1"),
        (lambda: wh.replica(zero="1"), r"zero='1'\): zero is 0, 1, 2 or 3"),
        (lambda: wh.replica(zero=np.array([0, 1])), r"zero is 0, 1, 2 or 3"),
        (lambda: wh.replica(shares=3), r"shares=3\): give a list of positive integers"),
        (lambda: wh.stage(np.array(2)), r"devices=array\(2\)\): give a list or range"),
        (lambda: wh.accumulate("2"), r"wh.accumulate\('2'\): give an integer of at least 1"),
        (lambda: wh.accumulate(np.array([1, 2])), r"give an integer of at least 1"),
        (lambda: wh.pipeline(None), r"micro_batches=None"),
        (lambda: wh.pipeline(2, "fast"), r"'fast' is not a schedule; give 'gpipe'"),
        (lambda: wh.pipeline(4, schedule=3), r"schedule=3\): 3 is not a schedule; give 'gpipe', '1f1b'"),
        (lambda: wh.pipeline(4, schedule=None), r"None is not a schedule; give 'gpipe', '1f1b'"),
        (lambda: wh.pipeline(4, schedule=["F0 B0"]), r"\['F0 B0'\] is not a schedule; give 'gpipe', '1f1b'"),
        (lambda: wh.pipeline(4, recompute="no"), r"recompute='no'\): give True or False"),
    ],
)
def test_bad_arguments(make, message):
    with pytest.raises(ScopeError, match=message):
        make()


@pytest.mark.parametrize(
    ("outer", "inner", "message"),
    [
        (
            wh.stage(),
            wh.pipeline(2),
            r"wh.pipeline\(micro_batches=2\) inside wh.stage\(\) makes no sense: .*stage\(\) i",
        ),
        (wh.stage(), wh.stage(), "end the outer one first"),
        (wh.pipeline(2), wh.pipeline(2), "take the inner one away"),
        (wh.split(), wh.stage(), r"write wh.split\(\) inside wh.stage\(\)"),
        (wh.split(), wh.pipeline(2), r"write wh.pipeline\(\) outside"),
        (wh.replica(), wh.replica(), "give the inner one a degree, or take it away"),
        (wh.replica(devices=range(2)), wh.split(devices=range(2)), "cannot both span the same 2 devices"),
        (wh.split(devices=[1, 0]), wh.replica(devices=[0, 1]), "put them one after the other"),
        (wh.replica(devices=range(2)), wh.split(devices=[2, 3]), r"devices \[2, 3\] are not among the outer scope's"),
    ],
)
def test_nestings_that_make_no_sense(outer, inner, message):
    @tf.function
    def step(x):
        with outer, inner:
            return x + 1

    with pytest.raises(ScopeError, match=message):
        step.get_concrete_function(tf.TensorSpec(()))


@pytest.mark.parametrize(
    "kinds",
    [
        (wh.replica(), wh.pipeline(2), wh.stage(), wh.split()),
        (wh.replica(), wh.split(2)),
        (wh.replica(), wh.replica(2)),
        (wh.replica(devices=range(4)), wh.split(devices=range(2))),
        (wh.local_statistics(), wh.local_statistics(), wh.auto()),
        (wh.stage(devices=[0, 1]), wh.replica(devices=[0, 1])),
    ],
)
def test_nestings_that_make_sense(kinds):
    path = tuple(Scope(kind.kind, number, kind.options) for number, kind in enumerate(kinds))
    for end in range(1, len(path) + 1):
        check(path[:end])


def test_ops_carry_their_scopes():
    replica = wh.replica()

    def step(x):
        with replica:
            x = tf.nn.relu(x)
            with wh.split(2):
                x = tf.tanh(x)
            x = tf.exp(x)
        for _ in range(2):  # one object, entered again
            with replica:
                x = tf.sin(x)
        return tf.cos(x)

    found = paths(capture(step, tf.TensorSpec((2,))))
    assert found["Relu"] == found["Exp"] == ["replica#0"]
    assert found["Tanh"] == ["replica#0/split#1(degree=2)"]
    assert found["Sin"] == ["replica#2", "replica#3"]
    assert found["Cos"] == [""]


def test_called_functions_are_inside_the_scopes_of_the_call():
    @tf.function
    def helper(x):
        with wh.split():
            x = tf.tanh(x)
        return tf.exp(x)

    def step(x):
        with wh.replica():
            x = helper(x)
        return helper(x)

    found = paths(capture(step, tf.TensorSpec((2,))))
    assert found["Tanh"] == ["replica#0/split#1", "split#2"]
    assert found["Exp"] == ["replica#0", ""]


def test_a_nesting_across_a_call_is_checked():
    @tf.function
    def helper(x):
        with wh.stage():
            return x + 1

    helper.get_concrete_function(tf.TensorSpec((2,)))  # traced before, where it was fine

    def step(x):
        with wh.stage():
            return helper(x)

    with pytest.raises(ScopeError, match="end the outer one first"):
        capture(step, tf.TensorSpec((2,)))


class Classifier(keras.Model):
    def __init__(self):
        super().__init__()
        self.hidden, self.head = keras.layers.Dense(4, "relu"), keras.layers.Dense(3)

    def call(self, x):
        with wh.replica():
            x = self.hidden(x)
        with wh.split():
            return self.head(x)


def test_scopes_in_a_keras_call():
    model = Classifier()
    x = np.ones((2, 5), "float32")
    model(x)  # eagerly, as in plain TensorFlow
    model.compile("sgd", "mse")
    assert model.predict(x, verbose=0).shape == (2, 3)
    found = paths(capture(lambda x: model(x), x))
    assert found["Relu"] == ["replica#0"]
    assert found["MatMul"] == ["replica#0", "split#1"]


def test_a_scope_that_annotates_nothing_is_refused():
    message = r"wh.replica\(degree=2\) was entered outside any traced function.*wh.function"
    with pytest.raises(ScopeError, match=message), wh.replica(2):
        tf.ones(3) + 1


def test_a_step_inside_a_scope_is_refused_before_it_is_traced():
    traced = []
    with pytest.raises(ScopeError, match=r"wh.replica\(\) is open round the call of a step"), wh.replica():
        capture(traced.append, 1)
    assert not traced
