"""Moves: the layout changes that a plan needs, each tensor to each layout once."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from whaleish.boxing.route import Route, find_route
from whaleish.graph import LogicalGraph, layout_bytes
from whaleish.planner.plan import Plan
from whaleish.rules.rows import MERGE_ROWS
from whaleish.sbp import Layout


@dataclass(frozen=True, slots=True)
class Move:
    """One boxing.

    Attributes:
      tensor: what is moved; source and target: its layouts before and after.
      nbytes: what all devices send together in a step, by the volume table.
      reader: the first op that reads the result; -1 for an output of the step.
      collectives: how many follow one another in it.
      at_most: whether `nbytes` is the most that may be, as where repeated rows are sent once.
    """

    tensor: int
    source: Layout
    target: Layout
    nbytes: float
    reader: int
    collectives: int = 1
    at_most: bool = False


def find_moves(graph: LogicalGraph, plan: Plan) -> dict[tuple[int, Layout], Move]:
    """(tensor, target layout) -> move, in the order in which the ops first need them.

    A tensor that some reader needs whole is made whole first, and its other layouts are then cut from that. What a
    micro-batch reads is not cut from what is joined of all of them: that is there only after the last.
    """
    made: dict[int, Layout] = {}
    wanted: dict[int, dict[Layout, int]] = {}
    for index, (op, choice) in enumerate(zip(graph.ops, plan.choices, strict=True)):
        for tensor, layout in zip(op.inputs, choice.inputs, strict=True):
            if graph.tensors[tensor].dtype != "resource" and tensor not in graph.constants:
                wanted.setdefault(tensor, {}).setdefault(layout, index)
        made.update(zip(op.outputs, choice.outputs, strict=True))
    for tensor, layout in zip(graph.outputs, plan.outputs, strict=True):
        if tensor in graph.constants:
            continue
        wanted.setdefault(tensor, {}).setdefault(layout, -1)
    moves: dict[tuple[int, Layout], Move] = {}
    times = [number for number, axis in enumerate(plan.mesh.axes) if axis.time and axis.size > 1]
    for tensor, readers in wanted.items():
        held = [made[tensor]]
        spec = graph.tensors[tensor]
        nbytes = layout_bytes(spec.shape or (), spec.dtype) * graph.repeats(spec.producer)
        for layout, reader in sorted(readers.items(), key=lambda item: -sum(sbp.is_broadcast for sbp in item[0])):
            if layout in held:
                continue
            shape = spec.shape or ()
            early = [have for have in held if not any(_joins(made[tensor], have, layout, time) for time in times)]
            routes = [(have, find_route(plan.mesh, have, layout, shape, nbytes)) for have in early]
            volume, collectives, source = min((_cost(route, have) for have, route in routes), key=lambda cost: cost[:2])
            moves[tensor, layout] = Move(tensor, source, layout, volume, reader, collectives)
            held.append(layout)
    return moves


def _joins(made: Layout, have: Layout, layout: Layout, time: int) -> bool:
    """Whether a layout is of all micro-batches, of a tensor that each makes and that each reads in another layout."""
    return have[time].is_broadcast and not (made[time].is_broadcast or layout[time].is_broadcast)


def merged_moves(graph: LogicalGraph, plan: Plan) -> list[Move]:
    """What `MergeRows` gathers. Its results are made in the layout in which they then lie, by way of collectives."""
    moves: list[Move] = []
    readers: list[list[int]] | None = None
    for index, (op, choice) in enumerate(zip(graph.ops, plan.choices, strict=True)):
        if op.type != MERGE_ROWS or choice.inputs == choice.outputs:
            continue
        readers = readers or graph.consumers()
        for tensor, source, target in zip(op.outputs, choice.inputs, choice.outputs, strict=True):
            spec = graph.tensors[tensor]
            nbytes = layout_bytes(spec.shape or (), spec.dtype) * graph.repeats(index)
            volume, collectives, _ = _cost(find_route(plan.mesh, source, target, spec.shape or (), nbytes), source)
            moves.append(Move(tensor, source, target, volume, min(readers[tensor], default=-1), collectives, True))
    return moves


def _cost(route: Route | None, source: Layout) -> tuple[float, int, Layout]:
    """Bytes, and collectives one after another; a layout that cannot be reached costs infinitely much."""
    if route is None:
        return inf, 0, source
    return sum(hop.volume for hop in route), sum(hop.volume > 0 for hop in route), source
