"""Plans edited by hand: another legal layout for every op."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from whaleish.arguments import take_call
from whaleish.boxing.volume import volume
from whaleish.cluster import Cluster
from whaleish.planner import Choice, Plan
from whaleish.planner.moves import find_moves
from whaleish.planner.view import AxisView, Candidate
from whaleish.sbp import B, Sbp
from whaleish.world import world


def pinned(step: Any, arguments: list[Any], rng: random.Random) -> tuple[Plan, set[str]]:
    """The plan of a step with a random candidate for every op, and the kinds of layout changes that it asks for.

    Variables get one layout each, that of their first use; ops that cannot read it so are left whole where they can.
    """
    plan = step.plan_for(*arguments)
    graph = step._capture(take_call(arguments, {}, "global", world())).graph
    (axis,) = plan.mesh.axes
    view = AxisView(graph, axis, Cluster(axis.size))
    stored: dict[int, Sbp] = {}
    handles = {variable.handle for variable in graph.variables}
    made: dict[int, Sbp] = {}
    taken: list[Candidate] = []
    for index, op in enumerate(graph.ops):
        options = [c for c in view.candidates(index) if not c.expands and _fits(op.inputs, c, stored, handles, made)]
        if any(tensor in handles for tensor in op.outputs) or op.type == "Placeholder":
            options = options[:1]
        choice = rng.choice(options)
        taken.append(choice)
        for tensor, need in zip(op.inputs, choice.inputs, strict=True):
            if tensor in handles:
                stored[tensor] = need
        made.update(zip(op.outputs, choice.outputs, strict=True))
    edited = replace(
        plan,
        variables=tuple(
            (name, (stored.get(variable.handle, B),))
            for (name, _), variable in zip(plan.variables, graph.variables, strict=True)
        ),
        choices=tuple(
            Choice(
                tuple((stored.get(t, s) if t in handles else s,) for t, s in zip(op.inputs, c.inputs, strict=True)),
                tuple((s,) for s in c.outputs),
            )
            for op, c in zip(graph.ops, taken, strict=True)
        ),
    )
    moves = find_moves(graph, edited).values()
    return edited, {f"{move.source[0].kind}>{move.target[0].kind}" for move in moves}


def _fits(inputs: tuple[int, ...], candidate: Candidate, stored: dict, handles: set[int], made: dict) -> bool:
    for tensor, need in zip(inputs, candidate.inputs, strict=True):
        if tensor in handles:
            if need.is_partial or stored.get(tensor, need) != need:
                return False
        elif volume(made[tensor], need, 1.0, 2) == float("inf"):
            return False
    return True
