"""Homes: in which body a tensor is boxed to a layout in which bodies read it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from whaleish.graph import LogicalGraph, Op
from whaleish.planner.moves import Move
from whaleish.planner.plan import Plan
from whaleish.rules.control import CONDITION_RESULT, LOOP, LOOP_VARIABLE
from whaleish.sbp import Layout


def find_homes(
    graph: LogicalGraph, plan: Plan, moves: Mapping[tuple[int, Layout], Move]
) -> dict[tuple[int, Layout], int]:
    """(tensor, layout) -> the innermost region round all its readers, outside of loops that the tensor is not in."""
    if len(graph.regions) == 1:
        return {}
    readers: dict[tuple[int, Layout], set[int]] = {}
    for op, choice in zip(graph.ops, plan.choices, strict=True):
        for tensor, layout, region in zip(op.inputs, choice.inputs, _read_in(graph, op), strict=True):
            readers.setdefault((tensor, layout), set()).add(region)
    for tensor, layout in zip(graph.outputs, plan.outputs, strict=True):
        readers.setdefault((tensor, layout), set()).add(0)
    for (tensor, layout), move in reversed(moves.items()):  # what is made of a layout reads it too
        readers.setdefault((tensor, move.source), set()).update(readers[tensor, layout])
    looping = {region for op in graph.ops if op.type == LOOP for region in op.attrs["regions"]}
    homes = {}
    for (tensor, layout), regions in readers.items():
        home = _common(graph, regions)
        outside = _chain(graph, graph.ops[graph.tensors[tensor].producer].region)
        for region in _chain(graph, home):
            if region in looping and region not in outside:
                home = graph.regions[region].parent
        homes[tensor, layout] = home
    return homes


def _read_in(graph: LogicalGraph, op: Op) -> list[int]:
    """For each input of an op the region in which it is read."""
    if op.type == CONDITION_RESULT:
        return list(op.attrs["regions"])
    if op.type == LOOP:
        return [op.attrs["regions"][0]]
    if op.type == LOOP_VARIABLE:
        return [graph.regions[op.region].parent]
    return [op.region] * len(op.inputs)


def _chain(graph: LogicalGraph, region: int) -> list[int]:
    """A region and those round it, from inside out."""
    chain = [region]
    while chain[-1]:
        chain.append(graph.regions[chain[-1]].parent)
    return chain


def _common(graph: LogicalGraph, regions: Iterable[int]) -> int:
    """The innermost region round all of these."""
    first, *others = (_chain(graph, region) for region in regions)
    return next(region for region in first if all(region in other for other in others))
