"""Shapes of lists: a variant tensor gets the shape of its list's elements, where all of them have one."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from whaleish.graph import LogicalGraph, Op

_ITEMS = {"OptionalFromValue": 0, "TensorListSetItem": 2, "TensorListPushBack": 1}
"""Op type -> which input is an element."""
_TAKEN = {"OptionalGetValue": 0, "TensorListGetItem": 0, "TensorListPopBack": 1}
"""Op type -> which output is an element."""
_STACKS = {"TensorListFromTensor": 0, "TensorListScatterV2": 0, "TensorListScatterIntoExistingList": 1}
"""Op type -> which input is many elements, one behind another."""
_SHAPED = {"TensorListReserve": 0, "EmptyTensorList": 0}
"""Op type -> which input is the shape of the elements."""

Shape = tuple[int, ...]


def find_element_shapes(graph: LogicalGraph) -> bool:
    """Sets the shape of every variant tensor; None where lists that are made of one another have no one shape.

    What is taken from a list gets the shape of its elements where it had none, and an op that asks for that shape has
    a known value; returns whether there was a new one.
    """
    known = len(graph.constants)
    families = graph.lists()
    found: dict[int, set[Shape]] = {}
    for op in graph.ops:
        lists = [t for t in (*op.inputs, *op.outputs) if t in families]
        if lists:
            found.setdefault(families[lists[0]], set()).update(_shapes(graph, op))
    for tensor, family in families.items():
        shapes = found.get(family, set())
        graph.tensors[tensor].shape = next(iter(shapes)) if len(shapes) == 1 else None
    for op in graph.ops:
        if op.type == "TensorListElementShape" and (shape := graph.tensors[op.inputs[0]].shape) is not None:
            graph.constants[op.outputs[0]] = np.array(shape, graph.tensors[op.outputs[0]].dtype)
        if op.type in _TAKEN and (shape := graph.tensors[op.inputs[0]].shape) is not None:
            taken = graph.tensors[op.outputs[_TAKEN[op.type]]]
            taken.shape = shape if taken.shape is None else taken.shape
        if op.type == "TensorListStack" and (shape := graph.tensors[op.inputs[0]].shape) is not None:
            stacked, count = graph.tensors[op.outputs[0]], op.attrs.get("num_elements", -1)
            stacked.shape = (count, *shape) if stacked.shape is None and count >= 0 else stacked.shape
    return len(graph.constants) > known


def _shapes(graph: LogicalGraph, op: Op) -> Iterator[Shape]:
    """The shapes of elements that an op tells."""
    tensors = graph.tensors
    elements = [op.inputs[_ITEMS[op.type]]] if op.type in _ITEMS else []
    elements += [op.outputs[_TAKEN[op.type]]] if op.type in _TAKEN else []
    for tensor in elements:
        if tensors[tensor].dtype != "variant" and (shape := tensors[tensor].shape) is not None:
            yield shape
    stacks = [op.inputs[_STACKS[op.type]]] if op.type in _STACKS else []
    stacks += [op.outputs[0]] if op.type == "TensorListStack" else []
    for tensor in stacks:
        if tensors[tensor].dtype != "variant" and (shape := tensors[tensor].shape) is not None:
            yield shape[1:]
    if op.type in _SHAPED and op.attrs.get("element_dtype") != "variant":
        value = graph.constants.get(op.inputs[_SHAPED[op.type]])
        if value is not None and value.ndim == 1 and (value >= 0).all():
            yield tuple(int(length) for length in value)
