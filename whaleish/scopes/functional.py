"""Scopes round the building of a functional Keras model.

Building makes no op: Keras notes which operation was called on which symbolic tensors, a node for each call, and runs
the nodes when the model is called. So a node remembers the scopes that were open when it was made, and is inside them
again whenever it is run. The layers of a `Sequential` are in the scopes that they were added in: it makes its nodes
anew whenever a layer is added, or as late as on the first call.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any
from weakref import WeakKeyDictionary

import tensorflow as tf

from whaleish.capture import tf_private
from whaleish.graph import Scope
from whaleish.scopes import keras_private
from whaleish.scopes.annotation import annotate
from whaleish.scopes.building import Entering, Enterings, inside, open_enterings, setting

_layers: ContextVar[dict[int, Enterings]] = ContextVar("layers", default={})  # noqa: B039 - never written to
"""Of the `Sequential` that makes its nodes the enterings of each layer, by the layer's id."""
_running: ContextVar[Enterings] = ContextVar("running", default=())
"""What the node that is being run is inside."""
_added: WeakKeyDictionary[Any, dict[int, Enterings]] = WeakKeyDictionary()
"""Of each `Sequential` the enterings that its layers were added in, by the layer's id."""


def watch() -> None:
    """From now on nodes remember the scopes round them."""
    keras_private.watch_building(_node_made, _layer_added, _making_nodes, _run)


def _node_made(node: Any) -> None:
    node._whaleish_enterings = _layers.get().get(id(node.operation), open_enterings())
    for entering in node._whaleish_enterings:
        entering.calls += 1


def _layer_added(sequential: Any, layer: Any) -> None:
    _added.setdefault(sequential, {})[id(layer)] = open_enterings()
    for entering in open_enterings():
        entering.calls += 1


def _making_nodes(sequential: Any) -> AbstractContextManager[None]:
    enterings = _added.get(sequential, {})
    return setting(_layers, {id(layer): enterings.get(id(layer), ()) for layer in sequential._layers})


def _run(run: Callable[..., Any], function: Any, operation_of: Callable[[Any], Any], call: Callable[..., Any]) -> Any:
    """Runs the nodes of a model, each inside its scopes.

    Args:
      run: does it, given how to get the operation of a node and how to call that.
      operation_of: the operation to be called in the place of a node's.
      call: calls it.
    """
    enterings = [(node.operation, _enterings_of(node)) for node in keras_private.nodes_in_order(function)]
    if not any(inner for _, inner in enterings):
        return run(operation_of, call)
    graph = tf_private.traced_graph()
    numbers = {} if graph is None else _numbers(graph, function)
    turns: dict[int, list[Enterings]] = {}
    for operation, inner in enterings:
        turns.setdefault(id(operation), []).append(inner)
    now: Enterings = ()

    def next_operation(operation: Any) -> Any:
        nonlocal now
        now = turns[id(operation)].pop(0)
        return operation_of(operation)

    def call_inside(operation: Any, *args: Any, **kwargs: Any) -> Any:
        if graph is None:  # Models are cloned so.
            with inside(now):
                return call(operation, *args, **kwargs)
        # A model that was built inside some of the scopes that it is called in is inside them once.
        own = tuple(one for one in now if one not in _running.get())
        scopes = [Scope(one.scope.kind, numbers[one], one.scope.options) for one in own]
        with annotate(graph, scopes), setting(_running, _running.get() + own):
            return call(operation, *args, **kwargs)

    return run(next_operation, call_inside)


def _numbers(graph: tf.Graph, function: Any) -> dict[Entering, int]:
    """Numbers of all that a model, and those in it, were built in: in the order of entering, whatever runs first."""
    numbers = tf_private.entering_numbers(graph)
    for entering in sorted(_all_enterings(function), key=lambda entering: entering.order):
        if entering not in numbers:
            numbers[entering] = tf_private.next_number(graph)
    return numbers


def _all_enterings(function: Any) -> set[Entering]:
    nodes = keras_private.nodes_in_order(function)
    own = {entering for node in nodes for entering in _enterings_of(node)}
    return own.union(*(_all_enterings(inner) for node in nodes for inner in keras_private.functions_of(node.operation)))


def _enterings_of(node: Any) -> Enterings:
    return getattr(node, "_whaleish_enterings", ())
