"""Static shapes after inlining: TensorFlow infers them again, now knowing what each call was given."""

from __future__ import annotations

from dataclasses import replace

import tensorflow as tf

from whaleish.capture import tf_private
from whaleish.capture.control import MADE, stand_in
from whaleish.capture.convert import static_shape
from whaleish.capture.flat import Flat, node_of
from whaleish.graph import LogicalGraph, Tensor
from whaleish.rules.control import CONDITION_RESULT


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


def refine_shapes(graph: LogicalGraph) -> bool:
    """Infers the shapes that are unknown still from those that are known by now; returns whether any was found.

    What is taken from a list has a shape only since the list's elements have one, and what is made of it has none yet.
    """
    tensors = graph.tensors
    unknown = [op for op in graph.ops if any(_is_unknown(tensors[t]) for t in op.outputs)]
    definition = tf.compat.v1.GraphDef()
    definition.versions.producer = tf.version.GRAPH_DEF_VERSION  # in old graphs a placeholder of no dims has any shape
    names: dict[int, str] = {}
    wanted: dict[int, str] = {}
    for number, op in enumerate(unknown):
        if op.type == CONDITION_RESULT:
            shapes = {tensors[t].shape for t in op.inputs}
            tensors[op.outputs[0]].shape = shapes.pop() if len(shapes) == 1 else None
        inferable = op.payload is not None and op.type not in (*MADE, "Placeholder")
        if not inferable or any(tensors[t].dtype in ("resource", "variant") for t in op.inputs):
            continue
        for tensor in op.inputs:
            if tensor not in names:
                names[tensor] = f"given_{tensor}:0"
                definition.node.append(_given(graph, tensor))
        node = definition.node.add()
        node.CopyFrom(op.payload)
        node.name, node.device = f"op_{number}", ""
        node.attr.pop("_class", None)
        del node.input[:]
        node.input.extend(names[t] for t in op.inputs)
        for slot, tensor in enumerate(op.outputs):
            names[tensor] = f"{node.name}:{slot}"
            if _is_unknown(tensors[tensor]):
                wanted[tensor] = names[tensor]
    if not wanted:
        return False
    with tf.Graph().as_default() as made:
        tf.import_graph_def(definition, name="")
        for tensor, name in wanted.items():
            tensors[tensor].shape = static_shape(made.get_tensor_by_name(name))
    return any(tensors[tensor].shape is not None for tensor in wanted)


def _is_unknown(tensor: Tensor) -> bool:
    return tensor.shape is None and tensor.dtype not in ("resource", "variant")


def _given(graph: LogicalGraph, tensor: int) -> tf.compat.v1.NodeDef:
    """A node for a tensor whose value, or else shape, is known or never will be."""
    spec, value = graph.tensors[tensor], graph.constants.get(tensor)
    node = tf.compat.v1.NodeDef(name=f"given_{tensor}", op="Placeholder" if value is None else "Const")
    node.attr["dtype"].type = tf.as_dtype(spec.dtype).as_datatype_enum
    if value is None:
        node.attr["shape"].shape.CopyFrom(tf.TensorShape(spec.shape).as_proto())
    else:
        node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value, dtype=spec.dtype))
    return node
