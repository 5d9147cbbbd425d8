"""Plans edited by hand: another legal layout for every op."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from whaleish.arguments import take_call
from whaleish.boxing.volume import volume
from whaleish.cluster import Cluster
from whaleish.graph import LogicalGraph
from whaleish.planner import Plan
from whaleish.planner.moves import find_moves
from whaleish.planner.view import AxisView, Candidate, OuterAxis, choice_of
from whaleish.sbp import B, Sbp
from whaleish.world import world


def pinned(step: Any, arguments: list[Any], rng: random.Random) -> tuple[Plan, set[str]]:
    """The plan of a step with a random candidate for every op, and the kinds of layout changes that it asks for.

    Variables get one layout each, that of their first use; ops that cannot read it so are left whole where they can.
    """
    plan = step.plan_for(*arguments)
    graph = step._capture(take_call(arguments, {}, "global", world())).graph
    handles = {variable.handle for variable in graph.variables}
    outer: list[OuterAxis] = []
    layouts: list[dict[int, Sbp]] = []
    for axis in plan.mesh.axes:
        view, stored = AxisView(graph, axis, Cluster(axis.size), outer), {}
        outer.append(OuterAxis(axis, _draw(graph, view, handles, stored, rng)))
        layouts.append(stored)
    edited = replace(
        plan,
        variables=tuple(
            (name, tuple(stored.get(variable.handle, B) for stored in layouts))
            for (name, _), variable in zip(plan.variables, graph.variables, strict=True)
        ),
        choices=tuple(map(choice_of, zip(*(drawn.taken for drawn in outer), strict=True))),
    )
    moves = find_moves(graph, edited).values()
    return edited, {f"{a.kind}>{b.kind}" for move in moves for a, b in zip(move.source, move.target, strict=True)}


def _draw(
    graph: LogicalGraph, view: AxisView, handles: set[int], stored: dict[int, Sbp], rng: random.Random
) -> list[Candidate]:
    """A random candidate for each op on one axis; fills `stored` with the layouts of variables."""
    made: dict[int, Sbp] = {}
    taken: list[Candidate] = []
    for index, op in enumerate(graph.ops):
        options = [c for c in view.candidates(index) if not c.expands and _fits(op.inputs, c, stored, handles, made)]
        if any(tensor in handles for tensor in op.outputs) or op.type == "Placeholder":
            options = options[:1]
        choice = rng.choice(options)
        for tensor, need in zip(op.inputs, choice.inputs, strict=True):
            if tensor in handles:
                stored[tensor] = need
        made.update(zip(op.outputs, choice.outputs, strict=True))
        taken.append(choice)
    return [
        c._replace(
            inputs=tuple(stored.get(t, s) if t in handles else s for t, s in zip(op.inputs, c.inputs, strict=True))
        )
        for op, c in zip(graph.ops, taken, strict=True)
    ]


def _fits(inputs: tuple[int, ...], candidate: Candidate, stored: dict, handles: set[int], made: dict) -> bool:
    for tensor, need in zip(inputs, candidate.inputs, strict=True):
        if tensor in handles:
            if need.is_partial or stored.get(tensor, need) != need:
                return False
        elif volume(made[tensor], need, 1.0, 2) == float("inf"):
            return False
    return True
