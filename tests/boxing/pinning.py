"""Plans drawn by chance: any legal layout for every op."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from whaleish.arguments import take_call
from whaleish.boxing.volume import volume
from whaleish.capture import fingerprint
from whaleish.cluster import Cluster
from whaleish.graph import LogicalGraph
from whaleish.mesh import Axis, Mesh
from whaleish.planner import Plan
from whaleish.planner.moves import find_moves
from whaleish.planner.view import AxisView, Candidate, OuterAxis, choice_of
from whaleish.sbp import B, Sbp
from whaleish.world import world


def pinned(step: Any, arguments: list[Any], rng: random.Random, mesh: Mesh | None = None) -> tuple[Plan, set[str]]:
    """A plan of a step with a random candidate for every op, and the kinds of layout changes that it asks for.

    Args:
      mesh: of as many parts as there are devices; the default is one axis.
    """
    graph = step._capture(take_call(arguments, {}, "global", world())).graph
    plan = pinned_plan(graph, mesh or Mesh((Axis("d", world().size),)), lambda index, options: rng.choice(options))
    moves = find_moves(graph, plan).values()
    return plan, {f"{a.kind}>{b.kind}" for move in moves for a, b in zip(move.source, move.target, strict=True)}


Choose = Callable[[int, Sequence[Any]], Any]
"""Given the number of an op and its options, one of these. The first divides the op least."""


def pinned_plan(graph: LogicalGraph, mesh: Mesh, choose: Choose) -> Plan:
    """A plan of a graph whose arguments arrive whole, with a legal candidate of somebody's choice for every op.

    First each variable gets a layout that all ops which use it can read; that is the choice of its placeholder.
    """
    outer: list[OuterAxis] = []
    layouts: list[dict[int, Sbp]] = []
    for axis in mesh.axes:
        view = AxisView(graph, axis, Cluster(mesh.size), outer)
        stored = _choose_variables(graph, view, choose)
        outer.append(OuterAxis(axis, _choose(graph, view, stored, choose)))
        layouts.append(stored)
    arrivals, depth = ((B,),) * len(graph.inputs), len(mesh.axes)
    return Plan(
        mesh=mesh,
        graph=fingerprint(graph)[:12],
        inputs=arrivals,
        outputs=((B,) * depth,) * len(graph.outputs),
        variables=tuple((v.name, tuple(stored[v.handle] for stored in layouts)) for v in graph.variables),
        choices=tuple(map(choice_of, zip(*(planned.taken for planned in outer), strict=True))),
    )


def _choose_variables(graph: LogicalGraph, view: AxisView, choose: Choose) -> dict[int, Sbp]:
    """Handle -> a layout in which every op can use the variable, together with those chosen before it."""
    stored: dict[int, Sbp] = {}
    for variable in graph.variables:
        common: list[Sbp] | None = None
        for index, op in enumerate(graph.ops):
            if variable.handle in op.inputs:
                offered = {need: None for need in _needs(op.inputs, view.candidates(index), variable.handle, stored)}
                common = [sbp for sbp in (offered if common is None else common) if sbp in offered]
        if common == []:  # variables that go together elsewhere than here
            return {v.handle: B for v in graph.variables}
        stored[variable.handle] = choose(graph.tensors[variable.handle].producer, common or [B])
    return stored


def _needs(inputs: tuple[int, ...], candidates: Sequence[Candidate], handle: int, stored: dict[int, Sbp]) -> list[Sbp]:
    """The layouts in which an op may use a variable, where others have theirs."""
    fitting = [c for c in candidates if all(stored.get(t, s) == s for t, s in zip(inputs, c.inputs, strict=True))]
    needs = [s for c in fitting for t, s in zip(inputs, c.inputs, strict=True) if t == handle]
    return [sbp for sbp in needs if not sbp.is_partial]


def _choose(graph: LogicalGraph, view: AxisView, stored: dict[int, Sbp], choose: Choose) -> list[Candidate]:
    """A candidate for each op on one axis, also with its units multiplied to meet those of its inputs."""
    made: dict[int, Sbp] = {}
    taken: list[Candidate] = []
    for index, op in enumerate(graph.ops):
        if op.type == "Placeholder":
            choice = Candidate((), tuple(stored.get(t, B) for t in op.outputs), False, 0, 0.0)
        else:
            options = [c for c in view.candidates(index) if _fits(op.inputs, c, stored, made)]
            options += [c for c in _with_units(view, index, options, made) if _fits(op.inputs, c, stored, made)]
            choice = choose(index, options)
        made.update(zip(op.outputs, choice.outputs, strict=True))
        taken.append(choice)
    return taken


def _with_units(view: AxisView, index: int, options: list[Candidate], made: dict[int, Sbp]) -> list[Candidate]:
    found: list[Candidate] = []
    for candidate in options:
        for position, (tensor, need) in enumerate(zip(view.graph.ops[index].inputs, candidate.inputs, strict=True)):
            have = made[tensor]
            if need.is_split and have.is_split and have.dim == need.dim and have.unit != need.unit:
                scaled = view.scaled(index, candidate, position, have.unit)
                if scaled is not None and scaled not in found:
                    found.append(scaled)
    return found


def _fits(inputs: tuple[int, ...], candidate: Candidate, stored: dict[int, Sbp], made: dict[int, Sbp]) -> bool:
    """Whether all that a candidate reads can be brought to it; a variable is where it is stored."""
    return all(
        need == stored[tensor] if tensor in stored else volume(made[tensor], need, 1.0, 2) < float("inf")
        for tensor, need in zip(inputs, candidate.inputs, strict=True)
    )
