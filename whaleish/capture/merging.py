"""Says of rows that are added up by id that repeated ids may be merged."""

from __future__ import annotations

from dataclasses import replace

from whaleish.graph import LogicalGraph, Op
from whaleish.rules.rows import ADDED_BY_ID, MERGE_ROWS, mergeable
from whaleish.rules.rule import TensorSpec


def mark_rows(graph: LogicalGraph) -> bool:
    """Writes, in place, a `MergeRows` before each op that adds rows by id; ops that add the same share one.

    Returns whether there were any. The new tensors stand at the end, until `prune` numbers all in order.
    """
    ops: list[Op] = []
    place: list[int] = []  # of each op that was there
    merged: dict[tuple[int, int, int], Op] = {}
    for op in graph.ops:
        if op.type in ADDED_BY_ID:
            at = ADDED_BY_ID[op.type]
            ids, rows = (op.inputs[k] for k in at)
            key = (op.region, ids, rows)
            if key not in merged and mergeable(_spec(graph, ids), _spec(graph, rows)):
                ops.append(_merge(graph, op, ids, rows))
                merged[key] = ops[-1]
            if key in merged:
                renamed = dict(zip(at, merged[key].outputs, strict=True))
                op.inputs = tuple(renamed.get(k, tensor) for k, tensor in enumerate(op.inputs))
        place.append(len(ops))
        ops.append(op)
    for index, op in enumerate(ops):
        op.controls = tuple(place[control] for control in op.controls)
        for tensor in op.outputs:
            graph.tensors[tensor].producer = index
    graph.ops = ops
    graph.effects = tuple(place[index] for index in graph.effects)
    return bool(merged)


def _spec(graph: LogicalGraph, tensor: int) -> TensorSpec:
    return TensorSpec(graph.tensors[tensor].shape, graph.tensors[tensor].dtype)


def _merge(graph: LogicalGraph, op: Op, ids: int, rows: int) -> Op:
    """The op, with its results at the end of the graph's tensors."""
    first = len(graph.tensors)
    graph.tensors += [replace(graph.tensors[tensor], slot=slot) for slot, tensor in enumerate((ids, rows))]
    name = f"{op.name}/{MERGE_ROWS}"
    return Op(name, MERGE_ROWS, (ids, rows), (first, first + 1), phase=op.phase, scope=op.scope, region=op.region)
