"""What may be given as a training step, and how each is called."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from whaleish.capture import tf_private

_ALLOWED = "a Python function, a tf.function, a ConcreteFunction, a SavedModel signature"


def callable_of(fn: Any) -> tuple[Callable[..., Any], bool]:
    """The function to trace for what the user gave, and whether autograph converts it.

    Raises:
      TypeError: where it is nothing that can be traced; the message says what to give instead.
    """
    if isinstance(fn, tf.compat.v1.Session | tf.compat.v1.InteractiveSession):
        raise TypeError(
            "a live tf.compat.v1.Session cannot be compiled: its variables and state live in the session. Export it as "
            "a SavedModel and give loaded.signatures['serving_default'], or give its graph by "
            "wh.function.from_graph_def(session.graph.as_graph_def(), inputs, outputs, variables)"
        )
    if isinstance(fn, tf.compat.v1.GraphDef | tf.Graph):
        raise TypeError(
            f"a {type(fn).__name__} has no arguments; use wh.function.from_graph_def(graph_def, inputs, outputs)"
        )
    if isinstance(fn, tf.types.experimental.PolymorphicFunction):
        # Traced afresh from its Python function: its own traces may have unknown dims where the arguments have none.
        return fn.python_function, tf_private.uses_autograph(fn)
    if callable(fn):
        return fn, True
    signatures = getattr(fn, "signatures", None)
    if isinstance(signatures, Mapping):
        names = ", ".join(f"loaded.signatures[{name!r}]" for name in signatures) or "none: it was saved without any"
        raise TypeError(f"a loaded SavedModel is not one function; give one of its signatures ({names})")
    raise TypeError(f"{type(fn).__name__} cannot be traced; give {_ALLOWED}, or wh.function.from_graph_def(...)")


def from_graph_def(
    graph_def: tf.compat.v1.GraphDef,
    inputs: Sequence[str],
    outputs: Any,
    variables: Mapping[str, tf.Variable] | None = None,
) -> Callable[..., Any]:
    """A function that computes the outputs of a TF1-style graph.

    Args:
      graph_def: only what the outputs need of it is used.
      inputs: names of the tensors to feed ("x" or "x:0"), in the order of the function's arguments.
      outputs: a name, or any nested structure of names; tensors ("loss:0") or operations to run ("train"; they return
        None).
      variables: for each `VarHandleOp` that the outputs need, by its name, the variable that takes its place.

    Raises:
      ValueError: where names are not in the graph, placeholders are not fed, or variables are not given.
    """
    nodes = {node.name: node for node in graph_def.node}
    wanted = tf.nest.flatten(outputs)
    for name in [*inputs, *wanted]:
        if name.partition(":")[0] not in nodes:
            placeholders = [node.name for node in graph_def.node if node.op.startswith("Placeholder")]
            raise ValueError(f"{name!r} is not in the graph. Its placeholders are {placeholders}")
    # Without the fed nodes' own ancestors, and without what only other outputs need (initializers, savers).
    fed = {name.partition(":")[0] for name in inputs}
    needed = _ancestors(nodes, [name.partition(":")[0] for name in wanted], fed)
    variables = dict(variables or {})
    _check_state([nodes[name] for name in needed], fed, variables)
    definition = tf.compat.v1.GraphDef(versions=graph_def.versions, library=graph_def.library)
    definition.node.extend(nodes[name] for name in needed if name not in fed and name not in variables)
    names = [name.partition(":")[0] for name in inputs]

    @tf.autograph.experimental.do_not_convert
    def step(*args, **kwargs):
        given = dict(zip(names, args, strict=False)) | kwargs
        if sorted(given) != sorted(names) or len(args) > len(names):
            raise TypeError(f"this graph takes {names}; it was given {len(args)} arguments and {sorted(kwargs)}")
        feeds = {_full(name): tf.convert_to_tensor(given[short]) for name, short in zip(inputs, names, strict=True)}
        graph = tf.compat.v1.get_default_graph()
        handles = {f"{name}:0": tf_private.handle_inside(graph, v) for name, v in variables.items() if name in needed}
        kept = [name for name in wanted if _full(name) not in feeds]
        made = dict(zip(kept, tf.graph_util.import_graph_def(definition, feeds | handles, kept, name=""), strict=True))
        found = [feeds.get(_full(name), made.get(name)) for name in wanted]
        found = [_tensor_of(element) for element in found]
        return tf.nest.pack_sequence_as(outputs, found)

    return step


def _full(name: str) -> str:
    return name if ":" in name else f"{name}:0"


def _tensor_of(element: Any) -> tf.Tensor | None:
    """An operation may have been named for its only output, or to be run."""
    if not isinstance(element, tf.Operation):
        return element
    return element.outputs[0] if len(element.outputs) == 1 else None


def _ancestors(nodes: Mapping[str, Any], roots: Sequence[str], stop: set[str]) -> list[str]:
    found, todo = set(roots), list(roots)
    while todo:
        name = todo.pop()
        if name in stop:
            continue
        for text in nodes[name].input:
            source = text.lstrip("^").partition(":")[0]
            if source not in found:
                found.add(source)
                todo.append(source)
    return [name for name in nodes if name in found]


def _check_state(nodes: Sequence[Any], fed: set[str], variables: Mapping[str, tf.Variable]) -> None:
    unfed = [node.name for node in nodes if node.op == "Placeholder" and node.name not in fed]
    if unfed:
        raise ValueError(f"the outputs need placeholders that are not among the inputs: {unfed}; add them to `inputs`")
    references = [node.name for node in nodes if node.op in ("Variable", "VariableV2")]
    if references:
        raise ValueError(
            f"the graph has reference variables, which TensorFlow 2 functions cannot hold: {references}. Freeze it "
            "(tf.compat.v1.graph_util.convert_variables_to_constants), or build it after "
            "tf.compat.v1.enable_resource_variables()"
        )
    missing = [node.name for node in nodes if node.op == "VarHandleOp" and node.name not in variables]
    if missing:
        raise ValueError(
            f"the outputs need variables that were not given: {missing}; pass variables={{name: tf.Variable(...)}} "
            "with their values"
        )
