"""From flat nodes to the logical graph, ops one to one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import tensorflow as tf

from whaleish import scopes as scopes_module
from whaleish.capture.attributes import attributes
from whaleish.capture.flat import Flat, ScopeKey
from whaleish.graph import LogicalGraph, Op, ScopePath, Tensor
from whaleish.rules.control import CONDITION_RESULT
from whaleish.sbp import Layout, parse_layout

PINNED = "_whaleish_layout"
"""Name of the op attribute that holds the layout stated for its output."""

SMALL = 4096
"""Constants of at most this many elements have their value in the graph."""

_NUMBERS = """bool uint8 uint16 uint32 uint64 int8 int16 int32 int64
bfloat16 float16 float32 float64 complex64 complex128"""
NUMBERS = frozenset(_NUMBERS.split())
"""Types whose values numpy holds."""


def convert(flat: Flat) -> LogicalGraph:
    """Every node as an op, with its payload; no effects, phases or folding yet.

    `graph.variables` is left empty: the caller knows which inputs are variables.
    """
    graph = LogicalGraph(regions=list(flat.regions))
    index: dict[str, int] = {}
    paths = _Paths(flat)
    tensors, constants = graph.tensors, graph.constants
    for number, node in enumerate(flat.nodes):
        name, kind = node.name, node.op
        inputs, controls = [], []
        for text in node.input:
            if text[0] == "^":
                controls.append(index[text[1:]])
                continue
            producer, _, slot = text.partition(":")
            inputs.append(graph.ops[index[producer]].outputs[int(slot or 0)])
        first = len(tensors)
        outputs = flat.operations[name].outputs
        for slot, output in enumerate(outputs[:1] if kind == CONDITION_RESULT else outputs):
            tensors.append(Tensor(number, slot, static_shape(output), output.dtype.name))
        op = Op(
            name,
            kind,
            tuple(inputs),
            tuple(range(first, len(tensors))),
            tuple(sorted(set(controls))),
            attributes(node),
            scope=paths.index(node),
            payload=node,
            pinned=pinned_layout(node),
            region=flat.region_of.get(name, 0),
        )
        if kind == "Const":
            value = constant_value(node)
            if value is not None:
                constants[first] = value
        index[name] = number
        graph.ops.append(op)
    graph.scopes = paths.paths()
    graph.inputs = tuple(graph.ops[index[name]].outputs[0] for name in flat.inputs)
    graph.outputs = tuple(graph.ops[index[n]].outputs[int(slot)] for n, slot in (o.split(":") for o in flat.outputs))
    graph.effects = tuple(sorted(index[name] for name in flat.roots))
    return graph


def pinned_layout(node: tf.compat.v1.NodeDef) -> Layout:
    """The layout that `wh.layout` stated."""
    return parse_layout(node.attr[PINNED].s.decode()) if PINNED in node.attr else ()


def static_shape(tensor: tf.Tensor) -> tuple[int, ...] | None:
    """The shape where every dim of it is known, else None."""
    shape = tensor.shape
    return tuple(shape.as_list()) if shape.is_fully_defined() else None


def constant_value(node: tf.compat.v1.NodeDef) -> np.ndarray | None:
    """Value of a `Const` node if it is a small array of numbers."""
    proto = node.attr["value"].tensor
    size = 1
    for dim in proto.tensor_shape.dim:
        size *= dim.size
    if size > SMALL or tf.as_dtype(proto.dtype).name not in NUMBERS:
        return None
    return tf.make_ndarray(proto)


class _Paths:
    """Numbers the distinct scope paths in the order of their first ops."""

    def __init__(self, flat: Flat) -> None:
        self.known: dict[tuple[ScopeKey, ...], int] = {(): 0}
        self.flat = flat

    def index(self, node: tf.compat.v1.NodeDef) -> int:
        name = node.name
        keys = scope_keys(node, self.flat.scopes.get(name, ()), self.flat.calls.get(name, 0))
        return self.known.setdefault(keys, len(self.known))

    def paths(self) -> list[ScopePath]:
        """The paths; their scopes are numbered in the order of their first ops, those of one call as entered."""
        keys = list(dict.fromkeys(key for path in self.known for key in path))
        entered = {
            call: iter(sorted((key for key in keys if key.call == call), key=lambda key: key.scope.number))
            for call in {key.call for key in keys}
        }
        numbers = {next(entered[key.call]): number for number, key in enumerate(keys)}
        found = []
        for path in self.known:
            scopes = tuple(replace(key.scope, number=numbers[key]) for key in path)
            for end in range(1, len(scopes) + 1):
                scopes_module.check(scopes[:end])
            found.append(scopes)
        return found


def scope_keys(node: tf.compat.v1.NodeDef, around: tuple[ScopeKey, ...], call: int) -> tuple[ScopeKey, ...]:
    """The scopes round a node: those of the calls that it came out of, then its own."""
    if scopes_module.ATTRIBUTE not in node.attr:
        return around
    own = scopes_module.parse(node.attr[scopes_module.ATTRIBUTE].s.decode())
    return around + tuple(ScopeKey(scope, call) for scope in own)
