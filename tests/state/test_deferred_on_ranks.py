"""Deferred variables on real ranks: each fills its own parts, and all start as rank 0, whatever ranks did before."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import whaleish as wh
from whaleish import world
from whaleish.mesh import Axis, Mesh
from whaleish.sbp import parse_layout
from whaleish.state import broadcast_from_chief, equalise_copies, lay_out, recipe

pytestmark = pytest.mark.ranks


def build(seed):
    keras.utils.set_random_seed(seed)
    layers = [keras.layers.Dense(8, activation="relu"), keras.layers.Dense(6, kernel_initializer="orthogonal")]
    layers[0].build((None, 4))
    layers[1].build((None, 8))
    return layers


def kernels(layers):
    return [layer.kernel.value for layer in layers]


def make_step(layers, scope, inner=None):
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9)

    @wh.function
    def step(x):
        with scope():
            with tf.GradientTape() as tape:
                for layer in layers:
                    if inner is None:
                        x = layer(x)
                    else:
                        with inner():
                            x = layer(x)
                loss = tf.reduce_mean(x**2)
            weights = [w for layer in layers for w in layer.trainable_weights]
            optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return loss

    return step, optimizer


SCOPES = {
    "replica": (lambda: wh.replica(), None),
    "split": (lambda: wh.split(), None),
    "stages": (lambda: wh.pipeline(2), lambda: wh.stage()),
}
X = np.linspace(-1, 1, 32).reshape(8, 4).astype("float32")


def small_is_large(function):
    """Runs a function on a rank with every variable large enough to be deferred."""

    def run(*arguments):
        world.init()  # again, as the harness clears Keras's session
        usual, recipe.SMALL = recipe.SMALL, 8
        try:
            return function(*arguments)
        finally:
            recipe.SMALL = usual

    return run


def trains(scope):
    """Losses and final weights: of a plain model, of a deferred one, of one that is deferred from other seeds."""
    found = []
    for seed, deferring in ((0, False), (0, True), (wh.rank(), True)):
        if deferring:
            with wh.deferred():
                layers = build(seed)
            assert all(v.deferred for v in kernels(layers))
        else:
            layers = build(seed)
        step, optimizer = make_step(layers, *SCOPES[scope])
        losses = [float(step(X)) for _ in range(3)]
        values = [v.value for layer in layers for v in layer.weights] + [v.value for v in optimizer.variables]
        assert not any(v.deferred for v in values)
        found.append((losses, [v.in_parts for v in values], [v.tolist() for v in wh.gather(values)]))
    return found


@pytest.mark.parametrize("scope", SCOPES)
def test_training_is_that_of_a_plain_model_also_where_seeds_differ(ranks, scope):
    first, second = ranks.run(small_is_large(trains), scope)
    assert first == second
    assert first[0] == first[1] == first[2]
    assert any(first[0][1]) == (scope != "replica")


def starts(what):
    """The kernels after the first step (of rate 0), where one rank did something before it; and those of rank 0."""
    with wh.deferred():
        layers = build(wh.rank())
    expected = [v.numpy() for v in kernels(build(0))]
    first, second = kernels(layers)
    if what == "rank 1 reads" and wh.rank() == 1:
        first.numpy()
    if what == "rank 0 reads" and wh.rank() == 0:
        second.numpy()
    if what == "rank 0 assigns":
        expected[0] = np.full_like(expected[0], 2.0)
        if wh.rank() == 0:
            first.assign(expected[0])
    if what == "all assign":
        expected[1] = np.full_like(expected[1], 3.0)
        second.assign(expected[1])
    waited = [first.deferred, second.deferred]
    step = wh.function(lambda x: frozen(layers, x))
    step(X)
    return waited, [np.array_equal(v, e) for v, e in zip(wh.gather([first, second]), expected, strict=True)]


def frozen(layers, x):
    with wh.split():
        for layer in layers:
            x = layer(x)
        return tf.reduce_mean(x)


def every_start():
    return {what: starts(what) for what in ("rank 1 reads", "rank 0 reads", "rank 0 assigns", "all assign")}


def test_what_only_some_ranks_have_made_starts_as_on_rank_0(ranks):
    first, second = ranks.run(small_is_large(every_start))
    waited = {what: (first[what][0], second[what][0]) for what in first}
    assert waited == {
        "rank 1 reads": ([True, True], [False, True]),
        "rank 0 reads": ([True, False], [True, True]),
        "rank 0 assigns": ([False, True], [True, True]),
        "all assign": ([True, False], [True, False]),
    }
    for of_rank in (first, second):
        assert {what: equal for what, (_, equal) in of_rank.items()} == {what: [True, True] for what in first}


def copies():
    """Values on this rank where rank 1 computes a little differently, as another processor might."""
    usual = recipe.Recipe.value
    if wh.rank() == 1:
        recipe.Recipe.value = lambda self: usual(self) + 1e-6
    mesh, made = Mesh((Axis("a", 2), Axis("b", 1))), []
    try:
        for layout in ("B,B", "B,S(0)", "S(0),B"):
            with wh.deferred():
                variable = tf.Variable(lambda: tf.random.stateless_normal([6, 4], [1, 2]))
            assert broadcast_from_chief([variable]) == []
            assert variable.deferred
            lay_out(variable, parse_layout(layout), mesh)
            made.append(variable)
        equalise_copies(made)
    finally:
        recipe.Recipe.value = usual
    own = [v.parts.read(v.parts.numbers[0]) if v.in_parts else v.numpy() for v in made]
    return [np.asarray(value) for value in own], tf.random.stateless_normal([6, 4], [1, 2]).numpy()


def test_copies_are_equal_to_the_last_bit(ranks):
    (first, value), (second, _) = ranks.run(small_is_large(copies))
    for of_rank in (first, second):
        np.testing.assert_array_equal(of_rank[0], value)
        np.testing.assert_array_equal(of_rank[1], value)
    np.testing.assert_array_equal(first[2], value[:3])
    assert not np.array_equal(second[2], value[3:])  # rank 1's alone, so as good as any


def reads_together():
    with wh.deferred():
        v = tf.Variable(lambda: tf.random.stateless_normal([6, 4], [1, 2]))
        w = tf.Variable(lambda: tf.random.stateless_normal([6, 4], [1, 2]))
    lay_out(w, parse_layout("S(0)"), Mesh((Axis("a", 2),)))
    value = tf.random.stateless_normal([6, 4], [1, 2])
    np.testing.assert_array_equal(wh.gather(v), value)
    np.testing.assert_array_equal(wh.gather(w), value)
    np.testing.assert_array_equal(w.numpy(), value)
    return w.parts.read(wh.rank()).numpy().tolist() == value[3 * wh.rank() : 3 * wh.rank() + 3].numpy().tolist()


def test_reading(ranks):
    assert ranks.run(small_is_large(reads_together)) == [True, True]
