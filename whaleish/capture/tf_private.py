"""The private TensorFlow and Keras calls of the front end, all of them, one small function each."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf
from keras.src.backend.common import global_state
from tensorflow.python.eager import context
from tensorflow.python.framework import op_def_registry
from tensorflow.python.ops import handle_data_util, resource_variable_ops


@contextlib.contextmanager
def op_attribute(graph: tf.Graph, name: str, value: str) -> Iterator[None]:
    """Every op made in `graph` inside carries the string attribute."""
    with graph._attr_scope({name: tf.compat.v1.AttrValue(s=value.encode())}):
        yield


def traced_graph() -> tf.Graph | None:
    """The graph that ops made now go into; None in eager code."""
    return None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()


def next_number(graph: tf.Graph) -> int:
    """0, 1, 2... for one graph."""
    count = getattr(graph, "_whaleish_scopes_entered", 0)
    graph._whaleish_scopes_entered = count + 1
    return count


def entering_numbers(graph: tf.Graph) -> dict[Any, int]:
    """Numbers of the scopes round the building of the models that were called in the graph so far."""
    if not hasattr(graph, "_whaleish_entering_numbers"):
        graph._whaleish_entering_numbers = {}
    return graph._whaleish_entering_numbers


def current_attribute(graph: tf.Graph, name: str) -> str | None:
    """The value that an op made in `graph` now would carry."""
    value = graph._attr_scope_map.get(name)
    return None if value is None else value.s.decode()


def outer_graph(graph: tf.Graph) -> tf.Graph | None:
    """The graph in which the function that is being traced was called; None for the outermost one."""
    return getattr(graph, "outer_graph", None)


def inside_keras_call() -> bool:
    """Whether a Keras layer is being called on this thread."""
    return global_state.get_global_attribute("current_call_ctx") is not None


def variable_data(handle: tf.Tensor) -> tuple[tuple[int | None, ...] | None, str] | None:
    """Shape and dtype of what a resource tensor refers to, where TensorFlow knows them."""
    eager = hasattr(handle, "_handle_data")
    data = handle._handle_data if eager else handle_data_util.get_resource_handle_data(handle)
    if data is None or not data.is_set or len(data.shape_and_type) != 1:
        return None
    shape = tf.TensorShape(data.shape_and_type[0].shape)
    return (
        None if shape.rank is None else tuple(shape.as_list()),
        tf.as_dtype(data.shape_and_type[0].dtype).name,
    )


def copy_variable_data(source: tf.Tensor, target: tf.Tensor) -> None:
    """Gives a resource placeholder the shape and dtype that another handle has."""
    handle_data_util.copy_handle_data(source, target)


def variable_of_handle(handle: tf.Tensor, shape: tuple[int, ...], dtype: str) -> tf.Variable:
    """The variable that a handle belongs to, or, where its object is out of reach, one that stands for it."""
    parent = getattr(handle, "_parent_trackable", None)
    own = parent() if parent is not None else None
    if own is not None:
        return own
    return resource_variable_ops.BaseResourceVariable(
        trainable=False, shape=tf.TensorShape(shape), dtype=tf.as_dtype(dtype), handle=handle
    )


def function_graph(graph: tf.Graph, name: str) -> tf.Graph | None:
    """The graph that a library function of `graph` was made from, where it still exists."""
    function = graph._get_function(name)
    return getattr(function, "_cached_graph", None)


def is_stateful(op_type: str) -> bool:
    """Whether running the op may do or see more than its inputs and outputs (true for unknown ops)."""
    definition = op_def_registry.get(op_type)
    return definition is None or definition.is_stateful


def run_once(definition: tf.compat.v1.GraphDef, fetches: list[str]) -> list[Any]:
    """Values of tensors of a graph without inputs, computed on the CPU without rewriting the graph."""
    config = tf.compat.v1.ConfigProto(device_count={"GPU": 0})
    config.graph_options.optimizer_options.opt_level = -1
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    with tf.Graph().as_default() as graph:
        tf.import_graph_def(definition, name="")
        with tf.compat.v1.Session(graph=graph, config=config) as session:
            return session.run(fetches)


def output_offset(node: tf.compat.v1.NodeDef, output: str, library: Mapping[str, Any]) -> int:
    """Number of the first tensor of a node's named output (functions' bodies name outputs so)."""
    definition = library[node.op].signature if node.op in library else op_def_registry.get(node.op)
    offset = 0
    for argument in definition.output_arg:
        if argument.name == output:
            return offset
        if argument.number_attr:
            offset += node.attr[argument.number_attr].i
        elif argument.type_list_attr:
            offset += len(node.attr[argument.type_list_attr].list.type)
        else:
            offset += 1
    raise ValueError(f"{node.op} has no output {output!r}")


def uses_autograph(function: Any) -> bool:
    """Whether a `tf.function` converts its Python function by autograph."""
    return bool(getattr(function, "_autograph", True))


def register_functions(definition: tf.compat.v1.GraphDef) -> None:
    """Makes the functions of a library known to the runtime.

    Without this, calling a function into which a graph with `While` or `If` ops was imported ends the process:
    importing tells the graph of their functions, but not the runtime.
    """
    for function in definition.library.function:
        if not context.context().has_function(function.signature.name):
            context.context().add_function_def(function)


def handle_inside(graph: tf.Graph, variable: tf.Variable) -> tf.Tensor:
    """The variable's handle as a tensor of the graph that is being traced, which then knows of the variable."""
    if hasattr(graph, "watch_variable"):
        graph.watch_variable(variable)
    return graph.capture(variable.handle)
