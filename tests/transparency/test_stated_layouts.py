"""Layouts that the user states, and scopes by name: they are taken, and the result is that of one device."""

from __future__ import annotations

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf

import whaleish as wh
from tests.transparency import work, zoo
from whaleish.planner import PlanError
from whaleish.state import storage
from whaleish.state.tf_private import ResourceVariable

layers = keras.layers
X = np.random.default_rng(3).normal(size=(12, 16)).astype("float32")
Y = np.arange(12) % 12
pytestmark = pytest.mark.parametrize("world_of", [4], indirect=True)


def pair(around=contextlib.nullcontext, rules=None, state=lambda model: None):
    """An MLP after three steps on one device, and one under whaleish; with the compiled step."""
    made = []
    for spread in (False, True):
        keras.utils.set_random_seed(4)
        model = keras.Sequential(
            [keras.Input((16,)), layers.Dense(24, "gelu", name="up"), layers.Dense(12, name="down")]
        )
        optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
        optimizer.build(model.trainable_variables)
        if spread:
            state(model)
        loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

        def step(x, y, model=model, optimizer=optimizer, loss_of=loss_of, scope=around if spread else wh.auto):
            with tf.GradientTape() as tape, scope():
                loss = loss_of(y, model(x))
            weights = model.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
            return loss

        made.append((model, optimizer, wh.function(step, rules=rules) if spread else tf.function(step)))
    (plain, _, alone), (model, optimizer, compiled) = made
    for _ in range(3):
        np.testing.assert_allclose(compiled(X, Y), alone(X, Y), rtol=1e-5)
    for a, b in zip(model.weights, plain.weights, strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-4, atol=1e-6)
    return model, optimizer, compiled


def stored(variable) -> str:
    return ",".join(map(str, storage(variable.value).layout))


@pytest.mark.parametrize("text", ["S(0)", "S(1)", "S(0:2)", "S(1:8)"])
def test_a_variable_and_its_slots(world_of, text: str) -> None:
    model, optimizer, _ = pair(wh.replica, state=lambda model: wh.layout(model.layers[0].kernel, text))
    text = "S(0)" if text == "S(0:2)" else text  # which has the same cuts
    assert stored(model.layers[0].kernel) == text
    (slot,) = [v for v in optimizer.variables if "up_kernel" in v.path or "up/kernel" in v.path]
    assert stored(slot) == text
    assert storage(model.layers[1].kernel.value).whole


def test_a_variable_on_two_axes(world_of) -> None:
    around = lambda: zoo.nested(wh.replica(2), wh.split())  # noqa: E731
    model, _, _ = pair(around, state=lambda model: wh.layout(model.layers[0].kernel, "S(0),S(1)"))
    assert stored(model.layers[0].kernel) == "S(0),S(1)"


def test_a_whole_variable_under_split(world_of) -> None:
    model, _, _ = pair(wh.split, state=lambda model: wh.layout(model.layers[0].kernel, "B"))
    assert storage(model.layers[0].kernel.value).whole
    assert stored(model.layers[1].kernel).startswith("S")


def test_stated_anew(world_of) -> None:
    model, _, step = pair(wh.replica, state=lambda model: wh.layout(model.layers[0].kernel, "S(0)"))
    before = model.layers[0].kernel.numpy()
    assert wh.layout(model.layers[0].kernel, "S(1)") is model.layers[0].kernel
    np.testing.assert_array_equal(model.layers[0].kernel.numpy(), before)
    step(X, Y)
    assert stored(model.layers[0].kernel) == "S(1)"


@pytest.mark.parametrize("text", ["S(0)", "S(1)", "B", "P"])
def test_a_tensor(world_of, text: str) -> None:
    w = tf.Variable(tf.random.stateless_normal([16, 12], [1, 2]))

    @wh.function
    def step(x):
        with tf.GradientTape() as tape:
            y = wh.layout(tf.matmul(x, w), text)
            loss = tf.reduce_sum(y * y)
        return loss, y, tape.gradient(loss, w)

    expected = X @ w.numpy()
    loss, y, gradient = step(X)
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(loss, (expected**2).sum(), rtol=1e-5)
    np.testing.assert_allclose(gradient, 2 * X.T @ expected, rtol=1e-4, atol=1e-4)
    graph, plan = step.program_for(X).capture.graph, step.plan_for(X)
    (index,) = [number for number, op in enumerate(graph.ops) if op.pinned]
    assert str(plan.choices[index].outputs[0][0]) == text


def test_sequence_parallel(world_of) -> None:
    """Between the blocks activations are split along the sequence; inside, heads and hidden units are."""

    def block(x, attention, up, down, norms, scope, stated):
        with scope():
            h = attention(norms[0](x), norms[0](x))
            x = stated(x + h)
            return stated(x + down(up(norms[1](x))))

    def make():
        keras.utils.set_random_seed(5)
        parts = [
            (
                layers.MultiHeadAttention(4, 4),
                layers.Dense(32, "gelu"),
                layers.Dense(16),
                [layers.LayerNormalization(), layers.LayerNormalization()],
            )
            for _ in range(2)
        ]
        x = tf.zeros([2, 8, 16])
        for part in parts:
            x = block(x, *part, contextlib.nullcontext, lambda t: t)
        variables = [v for a, u, d, norms in parts for layer in (a, u, d, *norms) for v in layer.trainable_variables]
        return parts, variables

    def stepper(parts, variables, scope, stated):
        def step(x):
            with tf.GradientTape() as tape:
                for part in parts:
                    x = block(x, *part, scope, stated)
                loss = tf.reduce_mean(tf.square(x))
            for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
                variable.assign_sub(0.1 * gradient)
            return loss

        return step

    x = np.random.default_rng(0).normal(size=(4, 8, 16)).astype("float32")
    plain, spread = make(), make()
    alone = tf.function(stepper(*plain, contextlib.nullcontext, lambda t: t))
    compiled = wh.function(
        stepper(*spread, lambda: zoo.nested(wh.replica(2), wh.split()), lambda t: wh.layout(t, "S(0),S(1)"))
    )
    for _ in range(3):
        np.testing.assert_allclose(compiled(x), alone(x), rtol=1e-5)
    for a, b in zip(spread[1], plain[1], strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-4, atol=1e-5)
    program = compiled.program_for(x)
    graph = work.running_graph(program)
    assert (2, 4, 16) in work.shapes(graph), "no activation is split along batch and sequence"
    single = sum(work.product_flops(alone.get_concrete_function(x).graph).values())
    for device, done in work.product_flops(graph).items():
        assert done / single <= 0.25 + 0.05, f"{device} did {done / single:.1%}"


def test_scopes_and_layouts_by_name(world_of) -> None:
    rules = {"/up": wh.split(), "/down": (wh.replica(),), "down/kernel": "S(1)"}
    model, _, compiled = pair(rules=rules)
    assert stored(model.layers[0].kernel).startswith("S")
    assert stored(model.layers[1].kernel) == "S(1)"
    nested = {"up|down": (wh.replica(2), wh.split())}
    _, _, compiled = pair(rules=nested)
    assert compiled.plan_for(X, Y).mesh.text() == "replica:2 x split:2"


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        ({"elephant": wh.split()}, "'elephant' is found in the name of no op. There are"),
        ({"elephant": "S(0)"}, "found in the name of no variable. There are"),
        ({"up": wh.split(), "up.*Mat": wh.replica()}, "has an earlier rule"),
        ({"(": wh.split()}, "is not a regular expression"),
        ({"up": "S0"}, "'S0' is not a layout"),
    ],
)
def test_rules_without_effect(world_of, rules, said: str) -> None:
    with pytest.raises(ValueError, match="(?s)" + said.replace("(", r"\(")):
        pair(rules=rules)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("S(0),B", "it has 2 entries, and the scopes of this step make a mesh of 1"),
        ("S(0:5)", "no cuts on multiples of 5"),
    ],
)
def test_layouts_that_do_not_fit(world_of, text: str, said: str) -> None:
    w = tf.Variable(tf.ones([16, 12]), name="kernel")
    wh.layout(w, text)
    with pytest.raises(PlanError, match=said) as raised:
        wh.function(lambda x: tf.matmul(x, w))(X)
    assert "variable 'kernel'" in str(raised.value)
    with pytest.raises(PlanError, match=said) as raised:
        wh.function(lambda x: wh.layout(tf.matmul(x, X.T), text))(X)
    assert "test_stated_layouts.py:" in str(raised.value)


def test_what_is_no_layout_of_a_value(world_of) -> None:
    w = tf.Variable(tf.ones([16, 12]), name="kernel")
    with pytest.raises(ValueError, match=r"no dim 2 to split as S\(2\)"):
        wh.layout(w, "S(2)")
    with pytest.raises(ValueError, match="cannot be stored as P"):
        wh.layout(w, "P")
    early = ResourceVariable(tf.ones([4]))  # as TensorFlow makes it before wh.init()
    with pytest.raises(
        ValueError, match=r"cannot be laid out as S\(0\): it was made before wh.init\(\).*Call wh.init\(\) first"
    ):
        wh.layout(early, "S(0)")
    with pytest.raises(RuntimeError, match="outside a step"):
        wh.layout(tf.ones([4]), "S(0)")


def test_a_product_under_split_reads_its_weight_as_stated(world_of) -> None:
    """Gathering this weight would move less than summing the product, and would undo what was stated."""
    rng = np.random.default_rng(5)
    up, down = (tf.Variable(rng.normal(size=shape)) for shape in ((16, 8), (8, 16)))
    x = tf.constant(rng.normal(size=(128, 16)))
    wh.layout(up, "S(1)")
    wh.layout(down, "S(0)")

    def loss_of(x):
        with wh.split():
            y = x + tf.tanh(x @ up) @ down
            y = y - tf.reduce_mean(y, -1, keepdims=True)
            return tf.reduce_mean(y * y)

    @wh.function
    def step(x):
        with tf.GradientTape() as tape:
            loss = loss_of(x)
        return loss, tape.gradient(loss, [up, down])

    program = step.program_for(x)
    graph = program.capture.graph
    (product,) = (index for index, op in enumerate(graph.ops) if op.type == "MatMul" and op.name == "matmul_1")
    assert str(program.plan.choices[product]) == "S(1) S(0) -> P"
    np.testing.assert_allclose(step(x)[0], tf.function(loss_of)(x), rtol=1e-9)


@pytest.mark.parametrize("given", [3, None, [3], ()])
def test_rules_that_are_none(world_of, given) -> None:
    with pytest.raises(TypeError, match=r"rules: 'dense' is given .*; give a scope"):
        wh.function(lambda x: x, rules={"dense": given})


def test_an_argument_is_cut_as_the_variable_that_it_is_added_to(world_of) -> None:
    """Along any dim, also after the layout was stated anew."""
    variable = tf.Variable(tf.ones([8, 4]))
    step = wh.function(lambda x: variable.assign_add(x))
    for number, text in enumerate(("S(0)", "S(1)", "B", "S(1)"), 2):
        wh.layout(variable, text)
        np.testing.assert_allclose(step(tf.ones([8, 4])), np.full([8, 4], number))
        assert str(storage(variable).layout) == f"({text},)"


def test_an_op_that_cannot_have_a_variable_so_says_so(world_of) -> None:
    rows, few = tf.Variable(tf.ones([8, 4]), name="rows"), tf.Variable(tf.ones([1, 4]), name="few")
    wh.layout(rows, "S(0)")
    wh.layout(few, "S(0)")
    update = wh.function(lambda i, x: rows.scatter_update(tf.IndexedSlices(x, i)))
    with pytest.raises(PlanError, match=r"'rows' of shape \[8, 4\] lies as S\(0\).*ResourceScatterUpdate"):
        update(tf.constant([1, 2]), tf.ones([2, 4]))
    with pytest.raises(PlanError, match=r"'few' of shape \[1, 4\] lies as S\(0\) over 4 devices"):
        wh.function(lambda: few * 2)()
