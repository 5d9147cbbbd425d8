"""Static shapes after inlining: TensorFlow infers them again, now knowing what each call was given."""

from __future__ import annotations

from dataclasses import replace

import tensorflow as tf

from whaleish.capture import tf_private
from whaleish.capture.control import MADE, stand_in
from whaleish.capture.flat import Flat, node_of


def infer_shapes(flat: Flat) -> Flat:
    """The same nodes with operations of their own, in place of those that were traced."""
    placeholders = set(flat.inputs)
    definition = tf.compat.v1.GraphDef(versions=flat.library.versions, library=flat.library.library)
    definition.node.extend(
        stand_in(node) if node.op in MADE else node for node in flat.nodes if node.name not in placeholders
    )
    with tf.Graph().as_default() as graph:
        given = {}
        for number, name in enumerate(flat.inputs):
            traced = flat.operations[name].outputs[0]
            # Not under its own name: "a/b" made now would have a node "a" imported as "a_1".
            tensor = given[name] = tf.compat.v1.placeholder(traced.dtype, traced.shape, f"whaleish_input_{number}")
            if traced.dtype in (tf.resource, tf.variant):
                tf_private.copy_variable_data(traced, tensor)
        read = {node_of(text) for node in definition.node for text in node.input}
        fed = {f"{name}:0": tensor for name, tensor in given.items() if name in read}
        tf.import_graph_def(definition, fed, name="")
        operations = {op.name: op for op in graph.get_operations()}
    return replace(flat, operations=operations | {name: tensor.op for name, tensor in given.items()})
