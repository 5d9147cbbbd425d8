"""The private Keras calls that see functional models being built and run, and the types in which layers compute."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from keras.src.backend.common.variables import AutocastScope
from keras.src.layers.layer import Layer
from keras.src.models.sequential import Sequential
from keras.src.ops.function import Function
from keras.src.ops.node import Node


@functools.cache
def watch_building(
    node_made: Callable[[Any], None],
    layer_added: Callable[[Any, Any], None],
    making_nodes: Callable[[Any], AbstractContextManager[None]],
    run: Callable[..., Any],
) -> None:
    """From the first call on Keras tells of what it builds, for good.

    Args:
      node_made: is given each node: one call of an operation on symbolic tensors.
      layer_added: is given a `Sequential` and a layer that is about to be added to it.
      making_nodes: is given a `Sequential`, and is round the making of the nodes of its layers.
      run: runs the nodes of a model: `run(original, function, operation_of, call)`.
    """
    init, add, build, run_nodes = Node.__init__, Sequential.add, Sequential.build, Function._run_through_graph

    @functools.wraps(init)
    def watched_init(node: Any, *args: Any, **kwargs: Any) -> None:
        init(node, *args, **kwargs)
        node_made(node)

    @functools.wraps(add)
    def watched_add(sequential: Any, layer: Any, *args: Any, **kwargs: Any) -> None:
        layer_added(sequential, layer)
        add(sequential, layer, *args, **kwargs)

    @functools.wraps(build)
    def watched_build(sequential: Any, *args: Any, **kwargs: Any) -> None:
        with making_nodes(sequential):
            build(sequential, *args, **kwargs)

    @functools.wraps(run_nodes)
    def watched_run(function: Any, inputs: Any, operation_fn: Any = _itself, call_fn: Any = None) -> Any:
        return run(
            lambda operation_of, call: run_nodes(function, inputs, operation_of, call),
            function,
            operation_fn,
            call_fn or _call,
        )

    Node.__init__, Sequential.add, Sequential.build = watched_init, watched_add, watched_build
    Function._run_through_graph = watched_run


@functools.cache
def watch_compute_types(chosen: Callable[[str, str, bool], str]) -> None:
    """From the first call on layers compute in the type that is chosen, for good.

    Args:
      chosen: is given the types that a layer's policy computes in and stores variables in, and whether it is quantized.
    """
    of_policy = Layer.compute_dtype.fget

    def compute_dtype(layer: Any) -> str:
        return chosen(of_policy(layer), layer.variable_dtype, layer.quantization_mode is not None)

    Layer.compute_dtype = property(compute_dtype, doc=Layer.compute_dtype.__doc__)


def autocast(dtype: str | None) -> AbstractContextManager[None]:
    """Variables of Keras that may be cast read in this type inside; None: in their own."""
    scope: AbstractContextManager[None] = AutocastScope(dtype)
    return scope


def nodes_in_order(function: Any) -> list[Any]:
    """The nodes of a function that make something, in the order in which it runs them."""
    by_depth = function._nodes_by_depth
    nodes = [node for depth in sorted(by_depth, reverse=True) for node in by_depth[depth]]
    return [node for node in nodes if node.operation and not node.is_input]


def functions_of(operation: Any) -> list[Any]:
    """The functions that calling an operation runs: a functional model is one, and a `Sequential` has one."""
    found = operation if isinstance(operation, Function) else getattr(operation, "_functional", None)
    return [found] if isinstance(found, Function) else []


def _itself(operation: Any) -> Any:
    return operation


def _call(operation: Any, *args: Any, **kwargs: Any) -> Any:
    return operation(*args, **kwargs)
