"""Collectives that TensorFlow would merge, fold or prune, and that ranks meet in another order: right on every rank.

TensorFlow takes Horovod's ops to be pure. Measured without care: of two all-reduces of equal tensors rank 0 got 12
instead of 4 and rank 1 hung; one with a constant input was folded into its first result.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import whaleish as wh
from tests.cluster.harness import run_script
from whaleish.boxing.horovod import HorovodBoxer
from whaleish.mesh import Axis, Mesh
from whaleish.sbp import B, P, S
from whaleish.tf_private import call_function, register_function
from whaleish.writer import FunctionWriter

pytestmark = pytest.mark.ranks


def twice_the_same() -> list[list[float]]:
    """Two gradients of equal values, two equal sums, and one that nothing reads, three calls in a row."""
    w, v = tf.Variable(tf.ones([3])), tf.Variable(tf.ones([3]))
    count = tf.Variable(0.0, trainable=False)

    @wh.function
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(x * w) + tf.reduce_sum(x * v)
        a, b = tape.gradient(loss, [w, v])
        unused = tf.reduce_sum(tf.square(x), 0)
        tf.debugging.assert_all_finite(unused, "unused")
        count.assign_add(tf.reduce_sum(x))
        return loss, a, b, tf.reduce_sum(x, 0), tf.reduce_sum(x, 0)

    found = []
    for call in range(3):
        x = tf.reshape(tf.range(12.0), [4, 3]) + call
        found.append(np.concatenate([np.ravel(value) for value in step(x)]).tolist())
    return [*found, [count.numpy()]]


def of_strings() -> tuple[list[bytes], list[int], float]:
    @wh.function
    def step(names, x):
        with wh.replica():
            lower, lengths = tf.strings.lower(names), tf.strings.length(names)
            return lower, lengths, tf.reduce_sum(tf.square(x) * tf.cast(lengths, tf.float32))

    lower, lengths, total = step(tf.constant(["Ab", "C", "DEf", ""]), tf.constant([1.0, 2.0, 3.0, 4.0]))
    return lower.numpy().tolist(), lengths.numpy().tolist(), float(total)


def test_strings_are_not_sent(ranks) -> None:
    assert ranks.run(of_strings, timeout=40) == [([b"ab", b"c", b"def", b""], [2, 1, 3, 0], 33.0)] * 2


def test_equal_tensors_reduced_twice(ranks) -> None:
    results = ranks.run(twice_the_same, timeout=40)
    total = 0.0
    for call in range(3):
        x = np.arange(12.0).reshape(4, 3) + call
        expected = [2 * x.sum(), *[*x.sum(0)] * 4]
        total += x.sum()
        for result in results:
            assert result[call] == pytest.approx(expected)
    assert [result[3] for result in results] == [[pytest.approx(total)]] * 2


def constant_on_one_rank() -> list[Any]:
    """Written by hand, as no plan makes such: rank 0 reduces, gathers and scatters constants, rank 1 its arguments."""
    from whaleish.world import world

    here, writer = world(), FunctionWriter()
    mesh, part, device = Mesh((Axis("d", 2),)), world().rank, world().devices[0]
    guard = writer.argument("guard", "int32", ())
    given = writer.argument("given", "float32", (4, 2))
    boxer = HorovodBoxer(writer, mesh, part, device, "constant", guard)
    value = np.arange(8, dtype="float32").reshape(4, 2)
    mine = writer.const(value, "float32", device) if here.rank == 0 else given
    results = [
        boxer.box([mine], (P,), (B,), (4, 2), 0)[0],
        boxer.box([mine], (P,), (B,), (4, 2), 0)[0],
        boxer.box([mine], (P,), (B,), (4, 2), 1)[0],
        boxer.box([mine], (S(0),), (B,), (8, 2), 0)[0],
        boxer.box([mine], (P,), (S(0),), (4, 2), 0)[0],
        boxer.box([mine], (S(0),), (S(1),), (8, 2), 0)[0],
    ]
    boxer.box([mine], (P,), (B,), (4, 2), 2)  # nothing reads this
    outputs = [writer.add("Identity", [ref])[0] for ref in results]
    register_function(writer.finish("constant_on_one_rank", outputs, boxer.finish()))
    calls = []
    for call in range(3):
        arguments = [tf.constant(0), tf.constant(value + call)]
        calls.append([made.numpy() for made in call_function("constant_on_one_rank", arguments, len(outputs))])
    return calls


def test_a_tensor_that_is_constant_on_one_rank_only(ranks) -> None:
    results = ranks.run(constant_on_one_rank, timeout=40)
    value = np.arange(8, dtype="float32").reshape(4, 2)
    for call in range(3):
        total, joined = 2 * value + call, np.concatenate([value, value + call])
        for rank, calls in enumerate(results):
            expected = [total] * 3 + [joined, total[2 * rank : 2 * rank + 2], joined[:, rank : rank + 1]]
            for got, wanted in zip(calls[call], expected, strict=True):
                np.testing.assert_array_equal(got, wanted)


def constants_in_a_step() -> list[list[float]]:
    """The first part of a value that is whole everywhere is kept, the other's is zeros: a constant to TensorFlow."""
    w = tf.Variable(tf.ones([2, 3]))

    @wh.function
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.matmul(x, w)) + tf.reduce_sum(w)  # a partial and a whole gradient of w meet
        gradient = tape.gradient(loss, w)
        w.assign_add(gradient)
        return gradient

    return [np.ravel(step(tf.ones([4, 2]) * call)).tolist() for call in (1.0, 2.0, 3.0)] + [np.ravel(w).tolist()]


def test_whole_and_partial_gradients_meet(ranks) -> None:
    for result in ranks.run(constants_in_a_step, timeout=40):
        assert result == [[5.0] * 6, [9.0] * 6, [13.0] * 6, [28.0] * 6]


def in_another_order() -> list[np.ndarray]:
    """Ranks come to independent collectives in another order, as something holds each of them up elsewhere."""
    from whaleish.world import world

    here, writer = world(), FunctionWriter()
    mesh, device = Mesh((Axis("d", 2),)), world().devices[0]
    guard = writer.argument("guard", "int32", ())
    refs = [writer.argument("given", "float32", (3,)) for _ in range(6)]
    boxer = HorovodBoxer(writer, mesh, here.rank, device, "order", guard)
    outputs = [boxer.box([ref], (P,), (B,), (3,), depth)[0] for depth, ref in enumerate(refs)]
    nodes = boxer.finish()
    by_name = {node.name: node for node in writer.function_def.node_def}
    # Each collective starts after a chain of work: the first has the longest on rank 0, the last on rank 1.
    after = guard
    for name in nodes if here.rank else nodes[::-1]:
        big = writer.add("Fill", [writer.const([300, 300], "int32"), writer.add("Cast", [after], DstT="float32")[0]])[0]
        for _ in range(3):
            (big,) = writer.add("MatMul", [big, big])
        (after,) = writer.add(
            "Cast", writer.add("Max", [big, writer.const([0, 1], "int32")], keep_dims=False), DstT="int32"
        )
        by_name[name].input.append("^" + after.split(":")[0])
    register_function(writer.finish("in_another_order", outputs, nodes))
    made = call_function("in_another_order", [tf.constant(0), *(tf.fill([3], float(n)) for n in range(6))], 6)
    return [value.numpy() for value in made]


def test_collectives_in_another_order_complete(ranks) -> None:
    for made in ranks.run(in_another_order, timeout=40):
        for number, value in enumerate(made):
            np.testing.assert_array_equal(value, [2.0 * number] * 3)


def steps_in_turn() -> list[float]:
    """Two steps called in the same order, by ranks that are late now and then."""
    rng = np.random.default_rng(wh.rank())
    w = tf.Variable(tf.ones([2]))

    @wh.function
    def forward(x):
        return tf.reduce_sum(x * w)

    @wh.function
    def update(x):
        w.assign_add(tf.reduce_mean(x, 0))
        return tf.reduce_sum(w)

    found = []
    for call in range(4):
        time.sleep(float(rng.uniform(0, 0.2)))
        x = tf.ones([3, 2]) * call
        found += [float(forward(x)), float(update(x))]
    return found


def test_steps_called_in_turn_by_late_ranks(ranks) -> None:
    assert ranks.run(steps_in_turn, timeout=40) == [[0.0, 2.0, 6.0, 4.0, 24.0, 8.0, 72.0, 14.0]] * 2


def extremes_of_nan() -> list[bool]:
    """A NaN that one rank holds is the maximum, and the minimum, as on one device."""
    found = []
    for row in (0, 7):  # the first rank's, the last rank's
        x = np.arange(16.0).reshape(8, 2)
        x[row, 1] = np.nan

        @wh.function
        def step(x):
            with wh.replica():
                return tf.reduce_max(x), tf.reduce_min(x), tf.reduce_max(x, 0), tf.reduce_min(x, 0)

        for ours, theirs in zip(step(tf.constant(x)), (x.max(), x.min(), x.max(0), x.min(0)), strict=True):
            found.append(bool(np.array_equal(ours.numpy(), theirs, equal_nan=True)))
    return found


def test_a_nan_survives_extremes(ranks) -> None:
    assert ranks.run(extremes_of_nan) == [[True] * 8] * 2


LONE_FAILURE = """
import time

import tensorflow as tf
import whaleish as wh

wh.init()


@wh.function
def step(x):
    return tf.reduce_sum(tf.debugging.check_numerics(x, "not finite"))


good = tf.ones([4])
step(good)
bad = tf.constant([1.0, 1.0, 1.0, float("nan")])  # in the half of the last rank
try:
    step(bad)
except tf.errors.InvalidArgumentError:
    print("caught")
step(good)
print("went on")
"""


def test_a_failure_of_one_rank_that_is_caught_ends_the_job() -> None:
    """The other rank waits in the failed step; the next call of the rank that failed must not wait as well."""
    result = run_script(2, LONE_FAILURE, timeout=90)
    assert not result.timed_out
    assert result.status != 0
    assert "went on" not in result.output
    assert "no step can be run any more" in result.output
    assert not result.survivors


def lengths_of_batches() -> list[list[int]]:
    """The last batch has a single row, which only one rank holds."""
    words = tf.data.Dataset.from_tensor_slices(["one", "three", "seven", "eleven", "a"]).batch(2)
    step = wh.function(lambda names: tf.strings.length(names))
    return [step(batch).numpy().tolist() for batch in wh.distribute_dataset(words)]


def test_a_single_string_in_parts(ranks) -> None:
    assert ranks.run(lengths_of_batches, timeout=60) == [[[3, 5], [5, 6], [1]]] * 2
