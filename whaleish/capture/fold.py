"""Folding: everything that follows from constants and static shapes becomes a constant."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import numpy as np
import tensorflow as tf

from whaleish.capture import tf_private
from whaleish.capture.convert import NUMBERS, SMALL
from whaleish.graph import LogicalGraph, Op, Tensor

_SHAPES = {
    "Shape": lambda shape: shape,
    "VariableShape": lambda shape: shape,
    "ShapeN": lambda shape: shape,
    "Size": lambda shape: int(np.prod(shape, dtype=np.int64)),
    "Rank": len,
}
_PICKS = frozenset(["Cast", "Identity", "IdentityN", "Max", "Reshape", "Slice", "StridedSlice"])
_INTEGERS = frozenset(name for name in NUMBERS if "int" in name) | {"bool"}


def fold(graph: LogicalGraph) -> None:
    """Finds the values of all tensors that follow from constants and static shapes.

    Their producers become `Const` ops without payload (one op per output that is read), their values go to
    `graph.constants`. Ops that nothing needs any more are left for `prune`.
    """
    values, known, pending = graph.constants, set(graph.constants), []
    later: dict[int, int] = {}  # what is known but was to come after some op -> that op
    for number, op in enumerate(graph.ops):
        if op.type in _SHAPES:
            _fold_shapes(graph, op, known)
        elif _is_itself(graph, op):
            graph.constants[op.outputs[0]] = np.ones(graph.tensors[op.outputs[0]].shape, bool)
            known.add(op.outputs[0])
            later[op.outputs[0]] = _origin(graph, op.inputs[0])
            continue
        elif op.inputs and known.issuperset(op.inputs) and _foldable(graph, op):
            pending.append(number)
            known.update(op.outputs)
            later |= {made: later[tensor] for made in op.outputs for tensor in op.inputs if tensor in later}
            continue
        waited = {later[tensor] for tensor in op.inputs if tensor in later}
        if waited:
            op.controls = tuple(sorted({*op.controls, *waited}))
    if pending:
        # A step that divides by a constant zero, say, fails when it runs and not before.
        with contextlib.suppress(tf.errors.OpError):
            values.update(_evaluate(graph, pending))
    _substitute(graph)


def _fold_shapes(graph: LogicalGraph, op: Op, known: set[int]) -> None:
    for source, made in zip(op.inputs, op.outputs, strict=True):
        tensor = graph.tensors[source]
        known_shape = tensor.shape is not None and tensor.dtype != "variant"
        if known_shape and (tensor.dtype == "resource") == (op.type == "VariableShape"):
            graph.constants[made] = np.array(_SHAPES[op.type](tensor.shape), graph.tensors[made].dtype)
            known.add(made)


def _is_itself(graph: LogicalGraph, op: Op) -> bool:
    """Whether an op asks if a number that is never NaN equals itself.

    `tf.recompute_grad` adds 0 in that case to what it computes with, so that it begins when the gradient is there.
    """
    if op.type != "Equal" or op.inputs[0] != op.inputs[1]:
        return False
    return graph.tensors[op.inputs[0]].dtype in _INTEGERS and graph.tensors[op.outputs[0]].shape is not None


def _origin(graph: LogicalGraph, tensor: int) -> int:
    """The op that makes what a tensor is an element of."""
    made = graph.tensors[tensor]
    while (op := graph.ops[made.producer]).type in _PICKS:
        made = graph.tensors[op.inputs[made.slot]]  # the first, but of a bundle that of the same number
    return made.producer


def _foldable(graph: LogicalGraph, op: Op) -> bool:
    for number in op.outputs:
        tensor = graph.tensors[number]
        # A tensor of unknown size is evaluated only where it is likely a shape.
        if tensor.dtype not in (NUMBERS if tensor.shape is not None else _INTEGERS):
            return False
        if tensor.shape is not None and np.prod(tensor.shape, dtype=np.int64) > SMALL:
            return False
    functions = any(value.WhichOneof("value") == "func" for value in op.payload.attr.values())
    return not functions and not tf_private.is_stateful(op.type)


def _evaluate(graph: LogicalGraph, pending: list[int]) -> dict[int, np.ndarray]:
    """Values of the pending ops' outputs that others read, by one run of a graph that has only those ops."""
    inside = set(pending)
    needed: set[int] = set(graph.outputs)
    for number, op in enumerate(graph.ops):
        if number not in inside:
            needed.update(op.inputs)
    definition = tf.compat.v1.GraphDef()
    names: dict[int, str] = {}
    fetches = []
    for number in pending:
        op = graph.ops[number]
        for source in op.inputs:
            if source not in names:
                names[source] = f"known_{source}"
                value = graph.constants[source]
                node = definition.node.add(name=names[source], op="Const")
                node.attr["dtype"].type = tf.as_dtype(value.dtype).as_datatype_enum
                node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value))
        node = definition.node.add()
        node.CopyFrom(op.payload)
        node.name = f"op_{number}"
        node.device = ""
        del node.input[:]
        node.input.extend(names[source] for source in op.inputs)
        node.attr.pop("_class", None)
        for slot, made in enumerate(op.outputs):
            names[made] = f"op_{number}:{slot}"
            if made in needed:
                fetches.append(made)
    found = tf_private.run_once(definition, [names[made] for made in fetches])
    return {made: value for made, value in zip(fetches, found, strict=True) if value.size <= SMALL}


def _substitute(graph: LogicalGraph) -> None:
    """Makes the producers of known tensors `Const` ops."""
    replaced: dict[int, list[int]] = {}
    for tensor in graph.constants:
        producer = graph.tensors[tensor].producer
        if graph.ops[producer].type != "Const":
            replaced.setdefault(producer, []).append(tensor)
    producers = [tensor.producer for tensor in graph.tensors]
    ops: list[Op] = []
    places: dict[int, int] = {}  # old index -> new index of the op that stands for it
    for number, op in enumerate(graph.ops):
        known = replaced.get(number, [])
        for tensor in known:
            ops.append(_constant(graph, op, tensor, len(ops), alone=len(op.outputs) == 1))
        if len(known) < len(op.outputs) or not known:
            if known:
                op.outputs = tuple(_spare(graph, tensor) if tensor in known else tensor for tensor in op.outputs)
            for tensor in op.outputs:
                graph.tensors[tensor].producer = len(ops)
            ops.append(op)
        places[number] = len(ops) - 1
    gone = {number for number, known in replaced.items() if set(known) >= set(graph.ops[number].outputs)}
    # A constant waits for nothing; who waited for it, or for an op that went, waits for what that one came after.
    gone |= {number for number, op in enumerate(graph.ops) if op.type == "Const"}
    waits = _waits(graph, producers, gone)
    for op in ops:
        if op.controls:
            controls = {w for c in op.controls for w in (waits[c] if c in gone else (c,))}
            op.controls = () if op.type == "Const" else tuple(sorted(places[c] for c in controls))
    graph.effects = tuple(places[number] for number in graph.effects if number not in gone)
    graph.ops = ops


def _spare(graph: LogicalGraph, tensor: int) -> int:
    """A tensor that nothing reads, for an output whose readers take a constant instead."""
    graph.tensors.append(replace(graph.tensors[tensor]))
    return len(graph.tensors) - 1


def _constant(graph: LogicalGraph, op: Op, tensor: int, number: int, alone: bool) -> Op:
    """The op that makes a known tensor."""
    old, value = graph.tensors[tensor], graph.constants[tensor]
    name = op.name if alone else f"{op.name}/output_{old.slot}"
    graph.tensors[tensor] = Tensor(number, 0, value.shape, old.dtype)
    return Op(name, "Const", (), (tensor,), (), {"dtype": old.dtype}, op.phase, op.scope, region=op.region)


def _waits(graph: LogicalGraph, producers: list[int], gone: set[int]) -> dict[int, frozenset[int]]:
    """For each op that went, the remaining ops that it came after: who waited for it waits for those."""
    waits: dict[int, frozenset[int]] = {}
    for number in sorted(gone):
        op, found = graph.ops[number], set()
        for earlier in {*op.controls, *(producers[tensor] for tensor in op.inputs)}:
            found |= waits[earlier] if earlier in gone else {earlier}
        waits[number] = frozenset(found)
    return waits
