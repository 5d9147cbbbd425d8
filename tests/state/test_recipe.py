"""Deferred variables have the values that plain building gives, bit for bit; who reads anything is made at once."""

import inspect
import random

import keras
import numpy as np
import pytest
import tensorflow as tf

import whaleish as wh
from whaleish import world
from whaleish.mesh import Axis, Mesh
from whaleish.sbp import parse_layout
from whaleish.state import lay_out, recipe
from whaleish.state.recipe import Recipe, recipe_or_initial

LINE = Mesh((Axis("a", 4),))
SHAPE = (24, 18)

KERAS = sorted(
    {
        one.__name__
        for one in vars(keras.initializers).values()
        if inspect.isclass(one) and issubclass(one, keras.initializers.Initializer)
    }
    - {"Initializer", "RandomInitializer"}
)
# Name -> what its constructor needs, and the shape it is for, where those are not the usual ones.
SPECIAL = {
    "Constant": ({"value": 0.3}, SHAPE),
    "Identity": ({}, (20, 20)),
    "STFT": ({"side": "real"}, (9, 1, 5)),
}
DRAWS = [name for name in KERAS if "seed" in inspect.signature(getattr(keras.initializers, name)).parameters]


@pytest.fixture(autouse=True)
def _all_are_large(monkeypatch):
    world.init(virtual_devices=4)  # whatever ran before may have cleared Keras's session
    monkeypatch.setattr(recipe, "SMALL", 8)


def both(make):
    """What `make` makes plainly, and deferred, from the same seeds; what is drawn afterwards must be equal too."""
    made = []
    for deferring in (False, True):
        keras.utils.set_random_seed(11)
        if deferring:
            with wh.deferred():
                variable = make()
        else:
            variable = make()
        after = (random.random(), np.random.random(), float(tf.random.uniform([])), keras.random.uniform([2]).numpy())
        made.append((getattr(variable, "value", variable) if isinstance(variable, keras.Variable) else variable, after))
    (plain, one), (later, other) = made
    np.testing.assert_equal(one, other)
    assert not plain.deferred
    return plain, later


def check(make, *, waits: bool, layout="S(0)"):
    plain, later = both(make)
    assert later.deferred == waits
    kinds = [(v.shape, v.dtype, v.trainable, v.synchronization, v.aggregation) for v in (plain, later)]
    assert kinds[0] == kinds[1]
    lay_out(later, parse_layout(layout), LINE)
    assert not later.deferred
    np.testing.assert_array_equal(plain.numpy(), later.numpy())


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
@pytest.mark.parametrize("name", KERAS)
def test_every_initializer_of_keras(name, dtype):
    arguments, shape = SPECIAL.get(name, ({}, SHAPE))
    traces = (name, dtype) != ("STFT", "float16")  # which mixes types, as only eager tensors may be
    check(lambda: keras.Variable(getattr(keras.initializers, name)(**arguments), shape, dtype), waits=traces)


@pytest.mark.parametrize("name", DRAWS)
def test_integer_seeds_and_initializers_shared_by_variables(name):
    _, shape = SPECIAL.get(name, ({}, SHAPE))
    shared = getattr(keras.initializers, name)(seed=5)
    for _ in range(2):
        check(lambda: keras.Variable(shared, shape, "float32"), waits=True, layout="S(1)")


@pytest.mark.parametrize("name", DRAWS)
def test_seed_generators_are_read_at_once(name):
    _, shape = SPECIAL.get(name, ({}, SHAPE))

    def make():
        seed = keras.random.SeedGenerator(3)
        first = keras.Variable(getattr(keras.initializers, name)(seed=seed), shape, "float32")
        second = keras.Variable(getattr(keras.initializers, name)(seed=seed), shape, "float32")
        assert int(seed.state[1]) > 0
        assert not np.array_equal(first, second)
        return second

    check(make, waits=False)


@pytest.mark.parametrize("name", ["GlorotUniform", "TruncatedNormal", "Orthogonal"])
def test_large_ones_which_several_threads_fill(name):
    check(lambda: keras.Variable(getattr(keras.initializers, name)(), (700, 900), "float32"), waits=True)


@tf.function
def scaled(x):
    return x * 3.0 if tf.size(x) > 2 else x


def sums():
    return tf.while_loop(lambda i, t: i < 4, lambda i, t: (i + 1, t + tf.ones([24, 18])), (0, tf.zeros([24, 18])))[1]


WAITS = {
    "zeros": lambda: tf.zeros([24, 18]),
    "fill": lambda: tf.fill([24, 18], 0.1),
    "eye": lambda: tf.eye(24),
    "range": lambda: tf.reshape(tf.range(24.0 * 18), [24, 18]) / 7,
    "uniform": lambda: tf.random.stateless_uniform([24, 18], [1, 2], -1.0, 1.0),
    "normal": lambda: tf.random.stateless_normal([24, 18], [1, 2], stddev=0.3),
    "truncated": lambda: tf.random.stateless_truncated_normal([24, 18], [1, 2]),
    "philox": lambda: tf.random.stateless_uniform([24, 18], [1, 2], alg="philox"),
    "integers": lambda: tf.random.stateless_uniform([24, 18], [1, 2], 0, 99, tf.int32),
    "binomial": lambda: tf.random.stateless_binomial([24, 18], [1, 2], 9.0, 0.5, tf.float32),
    "gamma": lambda: tf.random.stateless_gamma([24, 18], [1, 2], 0.7),
    "poisson": lambda: tf.random.stateless_poisson([24, 18], [1, 2], 3.0, tf.float32),
    "shuffled": lambda: tf.random.experimental.stateless_shuffle(tf.eye(24), [1, 2]),
    "keras": lambda: keras.random.normal((24, 18), seed=4),
    "function": lambda: scaled(tf.random.stateless_normal([24, 18], [1, 2])),
    "loop": sums,
    "a list of tensors": lambda: [tf.ones([18]), tf.range(18.0)] * 3,
    "a drawn number": lambda: tf.ones([24, 18]) * np.random.random(),
}


@pytest.mark.parametrize("case", WAITS)
def test_plain_initializers_that_wait(case):
    check(lambda: tf.Variable(WAITS[case], name="kernel"), waits=True)
    shape = tf.convert_to_tensor(WAITS[case]()).shape
    check(lambda: tf.Variable(initial_value=WAITS[case], trainable=False, shape=shape), waits=True)


def from_a_generator():
    generator = tf.random.Generator.from_seed(5)
    first = tf.Variable(lambda: generator.normal([24, 18]))
    second = tf.Variable(lambda: generator.normal([24, 18]))
    assert not np.array_equal(first, second)
    return second


def from_numpys_generator():
    generator = np.random.default_rng(5)
    tf.Variable(lambda: generator.normal(size=(24, 18)))
    return tf.Variable(lambda: tf.cast(generator.normal(size=(240, 180)), tf.float32) * 2)


def from_a_variable():
    other = tf.Variable(lambda: tf.random.stateless_normal([24, 18], [1, 2]))
    return tf.Variable(lambda: other * 2)


def from_a_variable_itself():
    other = tf.Variable(lambda: tf.random.stateless_normal([24, 18], [1, 2]))
    made = tf.Variable(lambda: other)
    other.assign(tf.zeros([24, 18]))
    return made


def from_a_variable_that_changes():
    other = tf.Variable(tf.ones([24, 18]))
    made = tf.Variable(lambda: other.assign_add(tf.ones([24, 18])) * 2)
    np.testing.assert_array_equal(other, 2 * np.ones([24, 18]))
    return made


def from_a_tensor():
    there = tf.random.stateless_normal([24, 18], [1, 2])
    return tf.Variable(lambda: there * 2)


def changes_and_gives_numpy():
    count = tf.Variable(0)

    def initial():
        count.assign_add(1)
        return np.ones([24, 18])

    made = tf.Variable(initial)
    assert int(count) == 1
    return made


def from_python():
    return tf.Variable(lambda: tf.py_function(lambda: np.random.random([24, 18]), [], tf.float64))


def mixed():
    return tf.Variable(lambda: tf.random.normal([24, 18]) + np.random.random([24, 18]).astype("f") * random.random())


AT_ONCE = {
    "normal": lambda: tf.Variable(lambda: tf.random.normal([24, 18])),
    "uniform, seeded": lambda: tf.Variable(lambda: tf.random.uniform([24, 18], seed=5)),
    "normal in a function": lambda: tf.Variable(lambda: scaled(tf.random.normal([24, 18]))),
    "shuffle": lambda: tf.Variable(lambda: tf.random.shuffle(tf.eye(24))),
    "dropout": lambda: tf.Variable(lambda: tf.nn.dropout(tf.ones([24, 18]), 0.5)),
    "numpy": lambda: tf.Variable(lambda: np.random.random([24, 18])),
    "numpy, with a type": lambda: tf.Variable(lambda: np.random.random([24, 18]), dtype=tf.float32),
    "numpy in a tensor": lambda: tf.Variable(lambda: tf.constant(np.random.random([240, 180])) * 2),
    "a list": lambda: tf.Variable(lambda: [[random.random()] * 20] * 3),
    "not for traces": lambda: tf.Variable(lambda: tf.ones([24, 18]) * float(tf.random.stateless_normal([], [1, 2]))),
    "checked": lambda: tf.Variable(lambda: tf.debugging.check_numerics(tf.ones([24, 18]), "not finite")),
    "strings": lambda: tf.Variable(lambda: tf.fill([24, 18], "a"), trainable=False),
    "a variable itself": lambda: from_a_variable_itself(),
    "of any shape": lambda: tf.Variable(lambda: tf.ones([24, 18]), shape=tf.TensorShape([None, 18])),
    "a tensor": lambda: tf.Variable(tf.random.stateless_normal([24, 18], [1, 2])),
    "a metric's": lambda: keras.metrics.MeanIoU(30).total_cm,
}
AT_ONCE |= {
    one.__name__: one
    for one in (
        from_a_generator,
        from_numpys_generator,
        from_a_variable,
        from_a_variable_that_changes,
        from_a_tensor,
        changes_and_gives_numpy,
        from_python,
        mixed,
    )
}


@pytest.mark.parametrize("case", AT_ONCE)
def test_what_reads_or_changes_anything_is_made_at_once(case):
    plain, later = both(AT_ONCE[case])
    assert not later.deferred
    np.testing.assert_array_equal(plain.numpy(), later.numpy())


def test_the_global_generator_is_made_once():
    tf.random.set_global_generator(tf.random.Generator.from_seed(3))
    with wh.deferred():
        first = tf.Variable(lambda: tf.random.get_global_generator().normal([24, 18]))
        second = tf.Variable(lambda: tf.random.get_global_generator().normal([24, 18]))
    generator = tf.random.Generator.from_seed(3)
    for variable in (first, second):
        np.testing.assert_array_equal(variable, generator.normal([24, 18]))


def test_the_python_of_an_initializer_runs_once():
    calls = []

    def initial(value):
        calls.append(1)
        return value()

    for case, make in WAITS.items():
        calls.clear()
        with wh.deferred():
            variable = tf.Variable(lambda make=make: initial(make))
        assert len(calls) == 1, case
        variable.numpy()
        assert len(calls) == 1, case
    for value in (lambda: np.ones([24, 18]), lambda: tf.ones([2]), lambda: variable * 2, lambda: tf.constant("a")):
        calls.clear()
        with wh.deferred():
            tf.Variable(lambda value=value: initial(value))
        assert len(calls) == 1


def test_what_an_initializer_makes_itself_is_made_at_once():
    inner = []

    def initial():
        inner.append(tf.Variable(lambda: tf.ones([24, 18])))
        return inner[0] * 2

    with wh.deferred():
        outer = tf.Variable(initial)
    assert not inner[0].deferred
    np.testing.assert_array_equal(outer, 2 * np.ones([24, 18]))


def test_a_recipe_is_small_and_its_value_is_made_on_the_host():
    found = recipe_or_initial(lambda: tf.random.stateless_normal([1000, 1000], [1, 2]))
    assert isinstance(found, Recipe)
    assert len(found.graph) < 4000
    assert found.value().device.endswith("CPU:0")
    with tf.device("/device:CPU:2"):
        assert found.value().device.endswith("CPU:0")


def test_shapes_that_do_not_fit_are_tensorflows_error():
    with wh.deferred(), pytest.raises(ValueError, match="not compatible"):
        tf.Variable(lambda: tf.ones([24, 18]), shape=[18, 24])


def test_errors_of_an_initializer_are_its_own():
    def fails():
        raise KeyError("of the user's")

    with wh.deferred(), pytest.raises(KeyError, match="of the user's"):
        tf.Variable(fails)


def test_small_variables_are_made_at_once(monkeypatch):
    monkeypatch.undo()
    with wh.deferred():
        small = tf.Variable(lambda: tf.ones([100, 100]))
        large = tf.Variable(lambda: tf.ones([200, 100]))
        dense = keras.layers.Dense(300)
        dense.build((None, 300))
    assert [small.deferred, large.deferred] == [False, True]
    assert [v.value.deferred for v in dense.weights] == [True, False]
