"""Ops put between those of a graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from whaleish.graph import LogicalGraph, Op


def add_tensors(graph: LogicalGraph, like: Sequence[int]) -> tuple[int, ...]:
    """New tensors of the shapes and types of others, the outputs of an op to come, at the end of the graph's."""
    first = len(graph.tensors)
    graph.tensors += [replace(graph.tensors[tensor], slot=slot) for slot, tensor in enumerate(like)]
    return tuple(range(first, len(graph.tensors)))


def insert_ops(graph: LogicalGraph, before: Mapping[int, Sequence[Op]]) -> None:
    """Puts new ops in front of those of some numbers, in place.

    The controls of new ops, too, name ops by the numbers they had before. Tensors keep their numbers, so those of new
    ops stand at the end until `prune` numbers all in order.
    """
    ops: list[Op] = []
    place: list[int] = []  # of each op that was there
    for index, op in enumerate(graph.ops):
        ops += before.get(index, ())
        place.append(len(ops))
        ops.append(op)
    for index, op in enumerate(ops):
        op.controls = tuple(place[control] for control in op.controls)
        for tensor in op.outputs:
            graph.tensors[tensor].producer = index
    graph.ops = ops
    graph.effects = tuple(place[index] for index in graph.effects)
