"""Conditions that write variables, under stages: as one would have run a branch, though both do."""

from __future__ import annotations

import pytest
import tensorflow as tf

import whaleish as wh
from whaleish.rules.control import CONDITION


class State:
    def __init__(self) -> None:
        self.a, self.b = tf.Variable([1.0, 2.0], dtype=tf.float64), tf.Variable(3.0, dtype=tf.float64)
        self.count = tf.Variable(0, dtype=tf.int64)

    def values(self) -> list:
        return [variable.numpy().tolist() for variable in (self.a, self.b, self.count)]


def both_write_one(state: State, x: tf.Tensor) -> tf.Tensor:
    def then() -> tf.Tensor:
        state.a.assign(state.a * x)
        state.count.assign_add(1)
        state.a.assign_add(state.a)  # reads what was just written
        return state.b + 1.0

    def other() -> tf.Tensor:
        state.a.assign_sub([0.5, 0.25])
        return state.b * tf.reduce_sum(state.a)

    return tf.cond(tf.reduce_sum(x) > 0.0, then, other)


def one_in_another(state: State, x: tf.Tensor) -> tf.Tensor:
    def inner() -> None:
        tf.cond(x[1] > 0.0, lambda: state.b.assign_add(1.0), lambda: state.b.assign(-state.b))

    def then() -> tf.Tensor:
        inner()
        state.a.assign(state.a / state.b)
        return tf.constant(True)

    return tf.cond(x[0] > 0.0, then, lambda: tf.constant(False))


def not_finite(state: State, x: tf.Tensor) -> tf.Tensor:
    new = state.a / (x - 1.0)
    finite = tf.reduce_all(tf.math.is_finite(new))
    tf.cond(finite, lambda: state.a.assign_add(new), lambda: state.a.assign(state.a / 2.0))
    return finite


def written_before_and_after(state: State, x: tf.Tensor) -> tf.Tensor:
    state.a.assign_add(x)
    tf.cond(x[0] > 0.0, lambda: state.a.assign(state.a * 2.0), lambda: state.a.assign(state.a * 3.0))
    state.a.assign_add(x)
    return state.a.read_value()


@pytest.mark.parametrize("world_of", [1], indirect=True)
@pytest.mark.parametrize("step", [both_write_one, one_in_another, not_finite, written_before_and_after])
def test_equal_to_branches(world_of: int, step) -> None:
    plain, chosen = State(), State()

    def staged(x: tf.Tensor) -> tf.Tensor:
        with wh.stage():
            return step(chosen, x)

    compiled, traced = wh.function(staged), tf.function(lambda x: step(plain, x))
    for x in ([1.0, 2.0], [-3.0, 1.0], [0.5, -2.0], [-1.0, -1.0], [2.0, 2.0]):
        given = tf.constant(x, tf.float64)
        assert compiled(given).numpy().tolist() == traced(given).numpy().tolist()
        assert chosen.values() == plain.values()
    assert not any(op.type == CONDITION for op in compiled.program_for(given).capture.graph.ops)


@pytest.mark.parametrize("world_of", [1], indirect=True)
def test_what_else_a_branch_does_it_does_only_where_it_is_taken(world_of: int, capfd) -> None:
    state = State()

    @wh.function
    def step(x: tf.Tensor) -> tf.Tensor:
        def then() -> tf.Tensor:
            tf.print("taken")
            return state.b.assign_add(1.0)

        with wh.stage():
            return tf.cond(x > 0.0, then, lambda: state.b.read_value())

    for x, printed in ((1.0, 1), (-1.0, 0)):
        step(tf.constant(x))
        assert capfd.readouterr().err.count("taken") == printed
    assert state.b.numpy() == 4.0
