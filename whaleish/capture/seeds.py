"""Seeds for random ops that have none: drawn on every rank for itself, they would differ from rank to rank."""

from __future__ import annotations

import hashlib

from tensorflow.core.framework import node_def_pb2

from whaleish.graph import LogicalGraph

_SEEDED = (("seed", "seed2"), ("random_seed", "random_seed2"))


def unseeded(graph: LogicalGraph) -> list[int]:
    """Stateful random ops to which nobody gave a seed."""
    return [
        index
        for index, op in enumerate(graph.ops)
        for names in _SEEDED
        if all(op.attrs.get(name, 1) == 0 for name in names)
    ]


def seed(graph: LogicalGraph, number: int) -> None:
    """Gives every unseeded op seeds, in place, that follow from `number` and differ from op to op."""
    for index in unseeded(graph):
        op = graph.ops[index]
        names = next(names for names in _SEEDED if names[0] in op.attrs)
        digest = hashlib.sha256(f"{number}/{index}".encode()).digest()
        seeds = [1 + int.from_bytes(digest[4 * n : 4 * n + 4], "big") // 2 for n in range(2)]
        payload = node_def_pb2.NodeDef()
        payload.CopyFrom(op.payload)
        for name, value in zip(names, seeds, strict=True):
            payload.attr[name].i = value
        op.payload, op.attrs = payload, {**op.attrs, **dict(zip(names, seeds, strict=True))}
