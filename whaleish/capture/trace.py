"""Tracing a training step into a `Capture`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from whaleish.capture import tf_private
from whaleish.capture.bundles import untie
from whaleish.capture.choices import choose_in_stages
from whaleish.capture.convert import convert
from whaleish.capture.flat import Flat, flat_of
from whaleish.capture.fold import fold
from whaleish.capture.gradients import mark_gradients
from whaleish.capture.inline import inline
from whaleish.capture.library import keep_functions
from whaleish.capture.lists import find_element_shapes
from whaleish.capture.local_means import mark_local_means
from whaleish.capture.merging import mark_rows
from whaleish.capture.phases import find_phases
from whaleish.capture.prune import find_effects, prune
from whaleish.capture.results import Results
from whaleish.capture.shapes import infer_shapes, refine_shapes
from whaleish.capture.signature import Signature, take_apart
from whaleish.capture.sources import source_finder
from whaleish.capture.steps import callable_of
from whaleish.capture.trips import find_trips
from whaleish.collector import collector_paused
from whaleish.graph import LogicalGraph, Variable
from whaleish.scopes import ScopeError
from whaleish.scopes.building import open_enterings


@dataclass
class Capture:
    """A traced step.

    Attributes:
      graph: its `inputs` are the flat tensor arguments, then `captured`, then `resources`.
      signature: of the call that was traced.
      captured: eager tensors that the step closes over.
      resources: eager resource tensors (tables, iterators) that it uses and that are no variables.
      variables: aligned with `graph.variables`.
      library: functions that ops in the graph refer to; they are registered with the runtime.
      results: packs the flat outputs back into what the step returns.
      concrete: the traced function; it keeps alive what the graph refers to.
    """

    graph: LogicalGraph
    signature: Signature
    captured: tuple[tf.Tensor, ...]
    resources: tuple[tf.Tensor, ...]
    variables: tuple[tf.Variable, ...]
    library: Any
    results: Results
    concrete: Any

    @property
    def arguments(self) -> int:
        """How many of `graph.inputs` are arguments."""
        return len(self.signature.specs)

    @property
    def structured_outputs(self) -> Any:
        """What the step returns, with an `Output`, `Composite`, `Constant` or None in the place of each leaf."""
        return self.results.structure

    def pack(self, flat: Sequence[Any]) -> Any:
        """What the step returns, with these values in the places of its flat outputs."""
        return self.results.pack(flat)


def capture(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Capture:
    """Traces `fn(*args, **kwargs)` once, without running it.

    Args:
      fn: a Python function, `tf.function`, `ConcreteFunction`, SavedModel signature, or what `from_graph_def` made.
      args, kwargs: as the step is called; nested structures. `tf.TensorSpec`s may stand for tensors.

    Raises:
      TypeError: where `fn` is nothing that can be traced.
      ValueError: where an argument has no static shape, or scopes make no sense.
    """
    signature, _ = take_apart(args, kwargs)
    return capture_signature(fn, signature)


def capture_signature(
    fn: Callable[..., Any], signature: Signature, annotate: Callable[[LogicalGraph], None] = lambda graph: None
) -> Capture:
    """Like `capture`, for a call that was taken apart already.

    Args:
      annotate: puts ops into more scopes than they were made in.
    """
    results, concrete = trace(fn, signature)
    with collector_paused():
        flat = flat_of(concrete.graph)
        without_calls = inline(flat)
        without_calls.library = keep_functions(without_calls.nodes, flat.library)
        tf_private.register_functions(without_calls.library)
        flat = flat if without_calls is flat else infer_shapes(without_calls)
        graph = convert(flat)
        captured, resources, variables = _bind(graph, flat, concrete, len(signature.specs))
        fold(graph)
        while find_element_shapes(graph) | refine_shapes(graph):
            fold(graph)
        untie(graph)
        find_effects(graph)
        prune(graph)
        if choose_in_stages(graph):
            prune(graph)
        find_trips(graph)
        find_phases(graph, flat.backward)
        annotate(graph)
        marked = [mark_local_means(graph), mark_rows(graph), mark_gradients(graph)]
        if any(marked):
            prune(graph)
    graph.source = source_finder(graph, concrete.graph, flat.origins)
    return Capture(graph, signature, captured, resources, variables, flat.library.library, results, concrete)


def trace(fn: Callable[..., Any], signature: Signature) -> tuple[Results, Any]:
    """Traces the step on flat tensors: what it returns, and the concrete function."""
    if open_enterings():
        raise ScopeError(
            f"{open_enterings()[-1].scope} is open round the call of a step, where it annotates nothing. Enter it in "
            "the function given to wh.function; round the building of a model, end it before the model is used"
        )
    results = Results()
    fn, autograph = callable_of(fn)

    def step(*tensors):
        args, kwargs = signature.pack(tensors)
        return results.take(fn(*args, **kwargs))

    concrete = tf.function(step, autograph=autograph).get_concrete_function(*signature.specs)
    return results, concrete


def _bind(
    graph: LogicalGraph, flat: Flat, concrete: Any, arguments: int
) -> tuple[tuple[tf.Tensor, ...], tuple[tf.Tensor, ...], tuple[tf.Variable, ...]]:
    """Sorts the inputs after the arguments into captured tensors, resources and variables; sets the graph's."""
    objects = {id(variable.handle): variable for variable in concrete.graph.variables}
    captured, resources, variables, taken = [], [], [], {}
    # Not `captured_inputs`: reading those brings variables that lie in parts back whole.
    for (eager, _), tensor in zip(concrete.graph.captures, graph.inputs[arguments:], strict=True):
        if eager.dtype != tf.resource:
            captured.append((eager, tensor))
            continue
        data = tf_private.variable_data(eager)
        variable = objects.get(id(eager))
        if variable is None and (data is None or data[0] is None or None in data[0]):
            resources.append((eager, tensor))
            continue
        if variable is None:
            variable = tf_private.variable_of_handle(eager, *data)
        shape = tuple(variable.shape.as_list())
        graph.tensors[tensor].shape = shape
        name = _unique(variable.name.split(":")[0], taken)
        dtype, pinned = variable.dtype.base_dtype.name, getattr(variable, "pinned", ())
        graph.variables += (Variable(name, tensor, shape, dtype, bool(variable.trainable), pinned),)
        variables.append(variable)
    graph.inputs = graph.inputs[:arguments] + tuple(tensor for _, tensor in (*captured, *resources))
    return tuple(e for e, _ in captured), tuple(e for e, _ in resources), tuple(variables)


def _unique(name: str, taken: dict[str, int]) -> str:
    count = taken[name] = taken.get(name, -1) + 1
    return f"{name}_{count}" if count else name
