"""What may be given as a step, and what each refusal says."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.capture.roundtrip import assert_same, rebuild
from whaleish.capture import capture, from_graph_def


def test_tf_function_with_unknown_dims_is_specialised_by_its_arguments():
    @tf.function(input_signature=[tf.TensorSpec((None, 3))])
    def step(x):
        return tf.reduce_sum(x, 0) / tf.cast(tf.shape(x)[0], tf.float32)

    captured = assert_same(step, np.ones((4, 3), "float32"))
    assert "Shape" not in {op.type for op in captured.graph.ops}
    assert all(tensor.shape is not None for tensor in captured.graph.tensors)


def test_methods_and_functions_without_autograph():
    class Trainer:
        def __init__(self):
            self.total = tf.Variable(1.0, name="total")

        @tf.function
        def step(self, x):
            if tf.reduce_sum(x) > 0:  # needs autograph
                self.total.assign_add(1.0)
            return self.total * x

    trainer = Trainer()
    assert_same(trainer.step, np.ones((2,), "float32"))
    with pytest.raises(tf.errors.OperatorNotAllowedInGraphError):
        capture(tf.function(lambda x: 1 if x > 0 else 2, autograph=False), 1 + np.zeros(()))


def test_concrete_function_with_unknown_dims():
    weights = tf.Variable(tf.ones((3, 2)), name="weights")
    function = tf.function(lambda x: tf.reshape(x @ weights, [tf.size(x) // 3 * 2]))
    concrete = function.get_concrete_function(tf.TensorSpec((None, 3)))
    captured = assert_same(concrete, np.ones((4, 3), "float32"), plain=concrete)
    assert {"Shape", "Size", "FloorDiv"}.isdisjoint(op.type for op in captured.graph.ops)
    assert captured.graph.tensors[captured.graph.outputs[0]].shape == (8,)


def test_saved_model_signature(tmp_path):
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(5, "relu"), keras.layers.Dense(2)])
    model.export(str(tmp_path / "model"), verbose=False)
    loaded = tf.saved_model.load(str(tmp_path / "model"))
    signature = loaded.signatures["serving_default"]
    name = next(iter(signature.structured_input_signature[1]))
    x = np.random.default_rng(0).normal(size=(3, 8)).astype("float32")
    captured = capture(lambda x: signature(**{name: x}), x)
    assert not any("PartitionedCall" in op.type for op in captured.graph.ops)
    assert [variable.shape for variable in captured.graph.variables] == [(8, 5), (5,), (5, 2), (2,)]
    (found,) = rebuild(captured)(x).values()
    np.testing.assert_allclose(found, model(x), rtol=1e-6)
    with pytest.raises(TypeError, match=r"give one of its signatures .*loaded.signatures\['serving_default'\]"):
        capture(loaded, x)


def old_graph():
    graph = tf.Graph()
    with graph.as_default():
        x = tf.compat.v1.placeholder(tf.float32, (None, 3), name="x")
        tf.compat.v1.placeholder(tf.float32, (), name="unused")
        weights = tf.compat.v1.get_variable("w", (3, 2), use_resource=True)
        loss = tf.reduce_mean(tf.matmul(x, weights) ** 2, name="loss")
        gradient = tf.compat.v1.gradients(loss, weights)[0]
        weights.assign_sub(0.1 * gradient, name="train")
    return graph.as_graph_def()


def test_graph_def_with_a_variable():
    weights = tf.Variable(tf.ones((3, 2)), name="w")
    names = [node.name for node in old_graph().node if node.op == "AssignSubVariableOp"]
    step = from_graph_def(old_graph(), ["x"], {"loss": "loss", "done": names[0]}, {"w": weights})
    captured = assert_same(step, np.ones((4, 3), "float32"))
    assert [variable.name for variable in captured.graph.variables] == ["w"]
    assert len(captured.graph.effects) == 1


def test_graph_def_refusals():
    with pytest.raises(ValueError, match=r"'y' is not in the graph. Its placeholders are \['x', 'unused'\]"):
        from_graph_def(old_graph(), ["y"], "loss")
    with pytest.raises(ValueError, match=r"placeholders that are not among the inputs: \['x'\]"):
        from_graph_def(old_graph(), ["unused"], "loss")
    with pytest.raises(ValueError, match=r"variables that were not given: \['w'\]"):
        from_graph_def(old_graph(), ["x"], "loss")
    with pytest.raises(TypeError, match=r"this graph takes \['x'\]"):
        capture(from_graph_def(old_graph(), ["x"], "loss", {"w": tf.Variable(tf.ones((3, 2)))}))


def test_live_sessions_and_bare_graphs_are_refused():
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        with pytest.raises(TypeError, match=r"a live tf.compat.v1.Session cannot be compiled.*from_graph_def"):
            capture(session)
        with pytest.raises(TypeError, match=r"GraphDef has no arguments; use wh.function.from_graph_def"):
            capture(session.graph.as_graph_def())
    with pytest.raises(TypeError, match=r"int cannot be traced; give a Python function, a tf.function"):
        capture(3)


def test_an_argument_without_static_shape_is_named():
    with pytest.raises(ValueError, match=r"argument args\[1\]\['b'\] has shape \(None, 3\), which is not static"):
        capture(lambda x, y: x, np.ones(2), {"a": 1, "b": tf.TensorSpec((None, 3))})
    with pytest.raises(ValueError, match=r"argument mask has shape <unknown>"):
        capture(lambda x, mask: x, np.ones(2), mask=tf.TensorSpec(None))
