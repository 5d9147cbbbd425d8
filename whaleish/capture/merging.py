"""Says of rows that are added up by id that repeated ids may be merged."""

from __future__ import annotations

from whaleish.capture.insert import add_tensors, insert_ops
from whaleish.graph import LogicalGraph, Op
from whaleish.rules.rows import ADDED_BY_ID, MERGE_ROWS, mergeable
from whaleish.rules.rule import TensorSpec


def mark_rows(graph: LogicalGraph) -> bool:
    """Writes, in place, a `MergeRows` before each op that adds rows by id; ops that add the same share one.

    Returns whether there were any. New tensors stand at the end (`insert_ops`).
    """
    new: dict[int, list[Op]] = {}
    merged: dict[tuple[int, int, int], Op] = {}
    for index, op in enumerate(graph.ops):
        if op.type in ADDED_BY_ID:
            at = ADDED_BY_ID[op.type]
            ids, rows = (op.inputs[k] for k in at)
            key = (op.region, ids, rows)
            if key not in merged and mergeable(_spec(graph, ids), _spec(graph, rows)):
                new[index] = [merged.setdefault(key, _merge(graph, op, ids, rows))]
            if key in merged:
                renamed = dict(zip(at, merged[key].outputs, strict=True))
                op.inputs = tuple(renamed.get(k, tensor) for k, tensor in enumerate(op.inputs))
    insert_ops(graph, new)
    return bool(merged)


def _spec(graph: LogicalGraph, tensor: int) -> TensorSpec:
    return TensorSpec(graph.tensors[tensor].shape, graph.tensors[tensor].dtype)


def _merge(graph: LogicalGraph, op: Op, ids: int, rows: int) -> Op:
    name, made = f"{op.name}/{MERGE_ROWS}", add_tensors(graph, (ids, rows))
    return Op(name, MERGE_ROWS, (ids, rows), made, phase=op.phase, scope=op.scope, region=op.region)
