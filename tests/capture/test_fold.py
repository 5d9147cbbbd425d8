"""Folding and pruning: what follows from shapes and constants is gone, what must run stays."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tests.capture.roundtrip import assert_same
from whaleish.capture import capture


def types(captured):
    return [op.type for op in captured.graph.ops]


def test_shape_computations_become_constants():
    def step(x):
        rows = tf.shape(x)[0]
        flat = tf.reshape(x, [rows * tf.shape(x)[1] // 2, -1])
        return tf.tile(flat, [tf.rank(flat), 1]) + tf.cast(tf.size(x), tf.float32), tf.shape_n([x, flat])

    captured = assert_same(step, np.ones((4, 6), "float32"))
    assert set(types(captured)) <= {"Placeholder", "Const", "Reshape", "Tile", "AddV2", "Identity"}
    assert all(tensor.shape is not None for tensor in captured.graph.tensors)
    made = [op for op in captured.graph.ops if op.type == "Const" and op.payload is None]
    assert made
    for op in captured.graph.ops:
        if op.type == "Const":
            value = captured.graph.constants[op.outputs[0]]
            assert value.shape == captured.graph.tensors[op.outputs[0]].shape
            assert str(value.dtype) == op.attrs["dtype"]


def test_shapes_that_are_not_static_stay():
    def step(x):
        kept = tf.boolean_mask(x, x > 0)
        return tf.zeros(tf.shape(kept)) + kept, tf.shape(x)

    captured = assert_same(step, np.array([1.0, -1.0, 2.0], "float32"))
    assert types(captured).count("Shape") == 1


def test_a_shape_op_with_one_unknown_output():
    def step(x):
        known, unknown = tf.shape_n([x, tf.boolean_mask(x, x > 0)])
        return known, unknown

    captured = assert_same(step, np.array([1.0, -1.0, 2.0], "float32"))
    assert types(captured).count("ShapeN") == 1
    assert captured.graph.outputs[0] in captured.graph.constants or "Identity" in types(captured)


@pytest.mark.timeout(60)
def test_ops_with_one_output_of_unknown_shape():
    def step(x):
        different, places = tf.unique(x)
        kept, numbers = tf.raw_ops.ListDiff(x=x, y=different[:2])
        return different, places + tf.shape(numbers), kept

    captured = assert_same(step, np.array([3, 1, 3, 2], "int32"))
    assert captured.graph.tensors[captured.graph.outputs[1]].shape == (4,)


def test_large_constants_keep_their_payload():
    large = np.arange(5000, dtype="float32")
    captured = assert_same(lambda x: x + large + tf.ones(5000), np.ones((5000,), "float32"))
    constants = [
        op for op in captured.graph.ops if op.type == "Const" and op.outputs[0] not in captured.graph.constants
    ]
    assert [op.payload.attr["value"].tensor.tensor_shape.dim[0].size for op in constants] == [5000]
    assert types(captured).count("Fill") == 1


def test_half_precision_constants():
    captured = assert_same(lambda x: x * tf.cast(2.0, tf.bfloat16) + 1, tf.ones((2,), tf.bfloat16))
    values = [value for value in captured.graph.constants.values() if str(value.dtype) == "bfloat16"]
    assert {float(value) for value in values} == {1.0, 2.0}


def test_a_constant_division_by_zero_waits_until_the_step_runs():
    captured = capture(lambda x: x + tf.constant(1) // tf.constant(0), np.ones((), "int32"))
    assert "FloorDiv" in types(captured)


def test_what_nothing_needs_is_gone_and_effects_stay():
    variable = tf.Variable(1.0, name="v")

    def step(x):
        tf.exp(x)  # nothing reads it
        variable.read_value()
        variable.assign_add(2.0)
        tf.print("step", x)
        tf.debugging.assert_greater(x, -1.0)
        with tf.control_dependencies([tf.shape(x)]):
            return tf.identity(variable)

    captured = assert_same(step, np.ones((), "float32"))
    assert "Exp" not in types(captured)
    effects = [captured.graph.ops[effect].type for effect in captured.graph.effects]
    assert sorted(effects) == ["Assert", "AssignAddVariableOp", "PrintV2"]


def test_unread_arguments_stay_inputs():
    captured = capture(lambda x, y: x, np.ones((2,), "float32"), np.ones((3,), "int64"))
    assert [captured.graph.tensors[tensor].shape for tensor in captured.graph.inputs] == [(2,), (3,)]


def test_order_of_reads_and_writes_is_kept():
    variable = tf.Variable(0.0, name="v")

    @tf.function
    def twice(x):
        variable.assign_add(x)
        return variable.read_value()

    def step(x):
        first = twice(x)
        variable.assign(variable * 10.0)
        second = twice(x)
        variable.assign(variable + 0.5)
        return first, second, variable.read_value()

    assert_same(step, np.ones((), "float32"))
