"""First values that can be computed later: what initializers were traced to, where it does not matter when they run."""

from __future__ import annotations

import functools
import json
import math
import random
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from whaleish.state import tf_private

SMALL = 64 << 10
"""Bytes below which a variable is made at once: tracing its initializer takes 10 ms."""

MOST_CONSTANTS = 64 << 10
"""Bytes of constants from which a recipe is not worth keeping: what NumPy computed is a constant of the trace."""

Initial = Callable[[], Any]

_FREE_OF_STATE = frozenset({"StatelessRandomGetAlg"})
"""Marked stateful because what they give depends on the device; all recipes are computed on the host."""

_PYTHON = frozenset({"PyFunc", "PyFuncStateless", "EagerPyFunc"})

tracing: ContextVar[bool] = ContextVar("tracing", default=False)
"""Whether an initializer is being traced: what it makes itself is made at once."""


@dataclass(frozen=True)
class Recipe:
    """How a variable's first value is computed: ops that read nothing and change nothing.

    Attributes:
      graph: a serialized `GraphDef` of a few KB; equal ones give equal values. output: the tensor in it.
    """

    shape: tuple[int, ...]
    dtype: tf.DType
    graph: bytes
    output: str

    def text(self) -> str:
        """On one line, for ranks to compare and to send; `parse` reads it."""
        return f"{list(self.shape)}|{self.dtype.name}|{self.output}|{self.graph.hex()}"

    @staticmethod
    def parse(text: str) -> Recipe:
        shape, dtype, output, graph = text.split("|")
        return Recipe(tuple(json.loads(shape)), tf.as_dtype(dtype), bytes.fromhex(graph), output)

    def value(self) -> tf.Tensor:
        """Computes it, on the host, in one buffer where TensorFlow can."""
        with tf.init_scope(), tf_private.stop_recording():
            function = _function_of(self)
            with tf.device("/device:CPU:0"):
                return _run(function)


@functools.lru_cache(maxsize=64)
def _function_of(recipe: Recipe) -> Any:
    """What computes it; kept, as slots of one shape have one recipe, and making it takes as long as tracing."""
    definition = tf.compat.v1.GraphDef.FromString(recipe.graph)

    def compute() -> tf.Tensor:
        return tf.graph_util.import_graph_def(definition, return_elements=[recipe.output], name="")[0]

    return tf.compat.v1.wrap_function(compute, [])


@functools.lru_cache(maxsize=64)
def filled(one: bool, shape: tuple[int, ...], dtype: tf.DType) -> Recipe | Initial:
    """The recipe of a variable that is full of zeros or ones."""
    return recipe_or_initial(lambda: (tf.ones if one else tf.zeros)(shape, dtype))


def recipe_or_initial(initial: Initial, dtype: Any = None) -> Recipe | Initial:
    """Traces an initializer: a recipe if its value can be computed later, else what to make the variable from now.

    The Python code of the initializer is run here, where it would have run anyway, and not again: what was traced is
    the recipe, or runs when the answer is called. It is run twice only where it draws from TensorFlow's random ops that
    keep their state in the op (`tf.random.normal`, not `stateless_normal`), which differ between a trace and eager
    execution, or fails while it is traced; what the first time drew from `random` and `numpy.random` is then put back.

    Args:
      dtype: of the variable; None: that of the value.
    """
    python, numpy = random.getstate(), np.random.get_state()
    given: list[Any] = []
    token = tracing.set(True)

    def trace() -> Any:
        made = initial()
        if any(map(_is_traced, tf.nest.flatten(made, expand_composites=True))):
            return tf.convert_to_tensor(made, dtype)
        given.append(made)  # a value that is there, of NumPy for example
        return None

    try:
        function = tf.function(trace, autograph=False).get_concrete_function()
    except Exception:  # whatever does not work in a trace is left to say so, or to work, eagerly
        function = None
    finally:
        tracing.reset(token)
    nodes = [] if function is None else list(_nodes(function.graph.as_graph_def()))
    if function is None or any(_keeps_state(node) for node in nodes):
        random.setstate(python)
        np.random.set_state(numpy)
        return initial
    changes = any(_is_stateful(node) for node in nodes)
    if given:
        return lambda: (_run(function) if changes else None, given[0])[1]
    output = function.graph.structured_outputs
    if changes or function.graph.captures or not _is_worth_it(output) or _constants(nodes) > MOST_CONSTANTS:
        return lambda: _run(function)
    graph = function.graph.as_graph_def().SerializeToString(deterministic=True)
    return Recipe(tuple(output.shape), output.dtype, graph, output.name)


def is_large(shape: tf.TensorShape | tuple, dtype: tf.DType) -> bool:
    """Whether a variable of this kind takes `SMALL` bytes or more."""
    return math.prod(shape) * dtype.size >= SMALL


def _run(function: Any) -> Any:
    # TensorFlow's optimizer would compute it once more, to see whether it is a constant worth keeping.
    with tf_private.unoptimized():
        return function()


def _is_traced(value: Any) -> bool:
    return isinstance(value, tf.Tensor) and not isinstance(value, tf_private.EagerTensor)


def _is_worth_it(output: tf.Tensor) -> bool:
    known = output.shape.is_fully_defined() and output.dtype.is_numpy_compatible
    return known and output.dtype not in (tf.string, tf.resource, tf.variant) and is_large(output.shape, output.dtype)


def _nodes(graph: Any) -> Iterator[Any]:
    yield from graph.node
    for function in graph.library.function:
        yield from function.node_def


def _is_stateful(node: Any) -> bool:
    if node.op in _PYTHON:
        return True
    return node.op not in _FREE_OF_STATE and tf_private.is_stateful(node.op)


def _keeps_state(node: Any) -> bool:
    """Whether the op itself has random state, which begins with seeds that eager execution chooses otherwise."""
    return "seed" in node.attr and _is_stateful(node)


def _constants(nodes: list[Any]) -> int:
    return sum(node.attr["value"].tensor.ByteSize() for node in nodes if node.op == "Const")
