"""What cannot be done is refused before any step runs: what was given, what is allowed, what to do."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import keras
import numpy as np
import pytest
import tensorflow as tf

import whaleish as wh
from whaleish import world
from whaleish.mesh import Axis, Mesh
from whaleish.planner import PlanError
from whaleish.sbp import S
from whaleish.scopes import ScopeError


@pytest.fixture(autouse=True)
def _four_devices() -> None:
    wh.init(virtual_devices=4)


@pytest.fixture
def counter() -> Iterator[tf.Variable]:
    """A variable that each step adds one to; no step may have run at the end."""
    count = tf.Variable(0.0, trainable=False)
    yield count
    assert count.numpy() == 0


X = np.ones((8, 4), "float32")


def refused(counter: tf.Variable, error: type[Exception], *said: str, scope, units: int = 8) -> None:
    """A step with a product in a scope raises, and says all this."""
    w = tf.Variable(tf.ones([4, units]), name="kernel")

    @wh.function
    def step(x):
        counter.assign_add(1.0)
        with scope():
            return tf.reduce_sum(tf.matmul(x, w))

    with pytest.raises(error) as raised:
        step(X)
    for part in said:
        assert part in str(raised.value), str(raised.value)


def test_a_split_of_a_dim_smaller_than_the_axis(counter) -> None:
    said = "split() cannot shard MatMul", "test_errors.py:", "over 4 devices", "(4, 3)", "dim=1", "at least 4 elements"
    refused(counter, PlanError, *said, "put it under replica()", scope=lambda: wh.split(dim=1), units=3)


def test_a_split_of_a_dim_that_is_not_there(counter) -> None:
    refused(counter, PlanError, "split()", "(4, 8)", "dim=5", scope=lambda: wh.split(dim=5))


class Both:
    """One scope inside another."""

    def __init__(self, outer, inner) -> None:
        self.scopes = outer, inner

    def __enter__(self) -> None:
        for scope in self.scopes:
            scope.__enter__()

    def __exit__(self, *error) -> None:
        for scope in reversed(self.scopes):
            scope.__exit__(*error)


@pytest.mark.parametrize(
    ("make", "error", "said"),
    [
        (lambda: Both(wh.replica(), wh.split()), PlanError, ["split() inside replica()", "all but one a degree"]),
        (lambda: Both(wh.replica(3), wh.split()), PlanError, ["replica(degree=3) on 4 devices", "with 3 devices"]),
        (lambda: Both(wh.replica(2), wh.split(3)), PlanError, ["degree=2) and split(degree=3) on 4", "with 6 devices"]),
        (lambda: Both(wh.replica(), wh.split(2, devices=[0, 1])), PlanError, ["outermost scope names the devices"]),
        (lambda: Both(wh.split(), wh.split()), ScopeError, ["wh.split() inside wh.split()", "take it away"]),
        (lambda: Both(wh.stage(), wh.stage()), ScopeError, ["inside wh.stage() makes no sense", "end the outer"]),
        (lambda: wh.replica(devices=range(8)), PlanError, ["there are 4 devices, numbered 0 to 3", "[0, 1, 2, 3, 4"]),
        (lambda: wh.split(degree=8), PlanError, ["split(degree=8) on 4 devices", "wh.init() with 8 devices"]),
        (lambda: wh.replica(degree=3), PlanError, ["replica(degree=3) on 4 devices", "leave the degree out"]),
        (lambda: wh.replica(devices=[0, 1]), PlanError, ["devices=[0, 1] leaves some of the 4", "with 2 devices"]),
    ],
)
def test_scopes_that_cannot_be(counter, make, error, said) -> None:
    refused(counter, error, *said, scope=make)


def test_scopes_beside_each_other_on_other_devices(counter) -> None:
    @wh.function
    def step(x):
        counter.assign_add(1.0)
        with wh.replica(devices=[0, 1, 2, 3]):
            y = x + 1
        with wh.split(devices=[3, 2, 1, 0]):
            return y * 2

    with pytest.raises(PlanError, match="scopes name different devices"):
        step(X)


def test_a_scope_outside_any_traced_function(counter) -> None:
    with pytest.raises(ScopeError, match=r"outside any traced function.*inside the function given to wh.function"):  # noqa: SIM117
        with wh.split():
            tf.matmul(X, X.T)
    step = wh.function(lambda x: (counter.assign_add(1.0), tf.reduce_sum(x))[1])
    with pytest.raises(ScopeError, match=r"wh.replica\(\) is open round the call of a step"):  # noqa: SIM117
        with wh.replica():
            step(X)


def test_inside_other_functions_and_under_tapes(counter) -> None:
    w = tf.Variable(2.0)

    @wh.function
    def step(x):
        counter.assign_add(1.0)
        return w * tf.reduce_sum(x)

    with pytest.raises(RuntimeError, match=r"traces another function.*make the outer function the wh.f"):
        tf.function(lambda x: step(x), autograph=False)(X)
    with tf.GradientTape(), pytest.raises(RuntimeError, match=r"under a GradientTape.*inside the step"):
        step(X)
    with tf.GradientTape() as tape:
        tape.watch(tf.constant(1.0))
        with pytest.raises(RuntimeError, match="under a GradientTape"):
            step(X)
    with tf.GradientTape() as tape, tape.stop_recording():
        pass  # a tape that does not record is none


def test_shapes_that_are_not_static(counter) -> None:
    @wh.function
    def step(x):
        counter.assign_add(1.0)
        return tf.reduce_sum(x)

    with pytest.raises(ValueError, match=r"args\[0\] has shape \(None, 4\), which is not static.*give every dim"):
        step.plan_for(tf.TensorSpec([None, 4]))


def test_what_cannot_be_traced() -> None:
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        live = wh.function(session)
    with pytest.raises(TypeError, match=r"a live tf.compat.v1.Session cannot be compiled"):
        live(X)
    with pytest.raises(TypeError, match=r"int cannot be traced; give a Python function"):
        wh.function(3)(X)


def test_wrong_words() -> None:
    with pytest.raises(ValueError, match=r"inputs='shard'.*'global' means.*'local' that each passes its own part"):
        wh.function(lambda x: x, inputs="shard")


def test_plans_for_something_else(counter) -> None:
    w = tf.Variable(tf.ones([4, 8]))

    def body(x):
        counter.assign_add(1.0)
        return tf.reduce_sum(tf.matmul(x, w))

    plan = wh.function(body).plan_for(X)
    with pytest.raises(PlanError, match=r"for graph \w+, and the step with these arguments is graph.*plan_for"):
        wh.function(body, plan=plan)(X[:6])
    with pytest.raises(PlanError, match=r"is for 2 devices; there are 4"):
        wh.function(body, plan=replace(plan, mesh=Mesh((Axis("d", 2),))))(X)
    with pytest.raises(PlanError, match=r"is for 3 devices; there are 4"):
        wh.function(body, plan=replace(plan, mesh=Mesh((Axis("d", 3),), (0, 1, 2))))(X)
    with pytest.raises(PlanError, match=r"devices \[0, 1, 2, 5\]; there are 4, numbered 0 to 3"):
        wh.function(body, plan=replace(plan, mesh=Mesh((Axis("d", 4),), (0, 1, 2, 5))))(X)
    with pytest.raises(PlanError, match=r"takes its inputs as S\(0\), and they arrive as B: .*distribute_dataset"):
        wh.function(body, plan=replace(plan, inputs=((S(0),), *plan.inputs[1:])))(X)


def test_before_init(counter) -> None:
    step = wh.function(lambda x: (counter.assign_add(1.0), x)[1])
    world._reset()
    try:
        for call in (step, step.plan_for, step.explain):
            with pytest.raises(RuntimeError, match=r"call wh.init\(\) first: at the top of the program"):
                call(X)
    finally:
        wh.init(virtual_devices=4)


def test_errors_of_the_users_own_code_pass_through(counter) -> None:
    @wh.function
    def step(x):
        counter.assign_add(1.0)
        return tf.matmul(x, x)

    with pytest.raises(ValueError, match="must be equal"):
        step(X)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    with pytest.raises(ValueError, match="incompatible"):
        wh.function(lambda x: model(x))(X)


def test_split_weights_that_something_uses_whole() -> None:
    """The error names what uses them, not their shape."""
    table = keras.layers.Embedding(16, 8)
    table.build(())
    rule = keras.optimizers.Adagrad(0.1)
    rule.build(table.trainable_variables)

    @wh.function
    def step(ids):
        with tf.GradientTape() as tape, wh.split():
            loss = tf.reduce_sum(table(ids))
        gradients = tape.gradient(loss, table.trainable_variables)
        rule.apply_gradients(zip(gradients, table.trainable_variables, strict=True))
        return loss

    with pytest.raises(wh.PlanError, match=r"is also used by \w*Resource\w* .*which runs whole.*replica\(\)"):
        step(tf.constant([1, 2, 2, 3]))


def test_an_op_that_fails_is_named_with_its_line() -> None:
    def step(x):
        y = tf.sqrt(x)
        for _ in tf.range(2):
            y = tf.debugging.check_numerics(y, "of a loop")
        return tf.debugging.check_numerics(tf.math.log(y - 1), "of the step")

    compiled = wh.function(step)
    first = step.__code__.co_firstlineno
    for x, words, line in ((-1.0, "of a loop", 3), (0.5, "of the step", 4)):
        with pytest.raises(tf.errors.InvalidArgumentError, match=words) as caught:
            compiled(tf.constant([x]))
        assert re.search(rf"^in \w+ '.*' at .*test_errors.py:{first + line}$", "".join(caught.value.__notes__))
