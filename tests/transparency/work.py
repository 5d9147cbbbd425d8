"""Who does what, read off the function that really runs: shapes and devices of its nodes, not the plan."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import tensorflow as tf
from tensorflow.core.framework.cpp_shape_inference_pb2 import CppShapeInferenceResult
from tensorflow.python.framework import function_def_to_graph
from tensorflow.python.ops import handle_data_util

from whaleish.graph import layout_bytes
from whaleish.planner.flops import flops
from whaleish.rules import OpView, TensorSpec
from whaleish.state import storage

HandleData = CppShapeInferenceResult.HandleData
PRODUCTS = [
    "MatMul",
    "BatchMatMulV2",
    "Einsum",
    "Conv2D",
    "DepthwiseConv2dNative",
    "Conv2DBackpropInput",
    "Conv2DBackpropFilter",
    "DepthwiseConv2dNativeBackpropInput",
    "DepthwiseConv2dNativeBackpropFilter",
]


def running_graph(program: Any) -> tf.Graph:
    """The function of a program as a graph, with the shapes that TensorFlow infers."""
    return graph_of(program.emitted)


def graph_of(emitted: Any) -> tf.Graph:
    """The same of any function that was written."""
    function = emitted.writer.function_def
    definition, _ = function_def_to_graph.function_def_to_graph_def(function)
    names = [argument.name for argument in function.signature.input_arg]
    with tf.Graph().as_default() as graph:
        given = {}
        for number, argument in enumerate(function.signature.input_arg):
            attrs = function.arg_attr[number].attr
            shape = attrs["_output_shapes"].list.shape[0] if "_output_shapes" in attrs else None
            given[argument.name] = tf.compat.v1.placeholder(tf.as_dtype(argument.type), shape)
            if "_handle_shapes" in attrs:
                data = HandleData(is_set=True)
                data.shape_and_type.add(
                    shape=attrs["_handle_shapes"].list.shape[0], dtype=attrs["_handle_dtypes"].list.type[0]
                )
                handle_data_util.set_handle_data(given[argument.name], data)
        for node in [node for node in definition.node if node.name in names]:
            definition.node.remove(node)
        read = {name.split(":")[0] for node in definition.node for name in node.input}
        tf.graph_util.import_graph_def(definition, {name: given[name] for name in names if name in read}, name="")
    return graph


def product_flops(graph: tf.Graph) -> dict[str, float]:
    """Device -> operations in matrix products and convolutions."""
    done: dict[str, float] = defaultdict(float)
    for op in graph.get_operations():
        if op.type in PRODUCTS:
            done[op.device] += flops(_view(op))
    return dict(done)


def staged_flops(program: Any, alone: tf.Graph) -> dict[str, float]:
    """Device -> its share of the operations in products that one device does alone, of a program with stages."""
    done: dict[str, float] = defaultdict(float)
    for _, _, emitted in program.emitted():
        for device, count in product_flops(graph_of(emitted)).items():
            done[device] += count
    single = sum(product_flops(alone).values())
    return {device: count / single for device, count in done.items()}


def held(program: Any) -> dict[str, float]:
    """Device -> its share of the bytes of all variables, by where their storage is in this process."""
    found: dict[str, float] = defaultdict(float)
    total = 0.0
    for variable in program.capture.variables:
        total += layout_bytes(tuple(variable.shape), variable.dtype.name)
        stored = storage(variable)
        distinct = dict(zip(map(id, stored.handles), zip(stored.handles, stored.parts, strict=True), strict=True))
        for handle, part in distinct.values():
            mesh = stored.mesh
            shape = variable.shape if mesh is None else mesh.local_shape(variable.shape, stored.layout, part)
            found[handle.device] += layout_bytes(tuple(shape), variable.dtype.name)
    return {device: count / total for device, count in found.items()}


def shapes(graph: tf.Graph) -> set[tuple[int | None, ...]]:
    """Of all tensors in the graph."""
    return {tuple(t.shape.as_list()) for op in graph.get_operations() for t in op.outputs if t.shape.rank is not None}


def _view(op: tf.Operation) -> OpView:
    names = [n for n in ("transpose_a", "transpose_b", "adj_x", "adj_y", "equation") if n in op.node_def.attr]
    attrs = {name: op.get_attr(name) for name in names}
    attrs = {name: value.decode() if isinstance(value, bytes) else value for name, value in attrs.items()}
    for tensor in (*op.inputs, *op.outputs):
        assert tensor.shape.is_fully_defined(), f"{op.type} {op.name} has a tensor of shape {tensor.shape}"
    spec = lambda t: TensorSpec(tuple(t.shape.as_list()), t.dtype.name)  # noqa: E731
    constants = (None,) * len(op.inputs)
    return OpView(op.type, attrs, tuple(map(spec, op.inputs)), tuple(map(spec, op.outputs)), constants)
