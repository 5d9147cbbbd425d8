"""Where partial sums become whole: the cheapest places, found as minimum cuts.

Linear ops may work on the summands of a partial sum, so its reduction can wait; it should wait where sums meet or
shrink, and not where one sum goes several ways. The tensors that are partial form regions joined by linear ops. In each
region every way from the ops that make partial sums to those that need whole values must meet one reduction: a minimum
vertex cut, with the bytes of a tensor as its capacity. An op that makes a sum may also make it whole at once, from
gathered inputs (`gathering.py`): that is a cut before the tensor.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from math import inf

import networkx as nx

from whaleish.graph import Op, layout_bytes
from whaleish.planner.gathering import gathering_seconds
from whaleish.planner.view import AxisView, Candidate, made_layouts
from whaleish.sbp import Sbp

_EVERY_REDUCTION = 512  # bytes: what a reduction costs besides its own, so that of equal cuts the smallest number wins


def settle_partials(
    view: AxisView, taken: list[Candidate], outputs: set[int], raw: AbstractSet[int] = frozenset()
) -> list[Candidate]:
    """Replaces linear ops on summands by the same ops on whole values where reducing earlier is cheaper.

    Args:
      taken: the candidate of each op. outputs: tensors that leave the step, where whole values are needed.
      raw: ops that stay as they are. Those that read summands make sums of their own of them.
    """
    graph = view.graph
    made = made_layouts(graph, taken)
    partial = {t for t, sbp in made.items() if sbp.kind == "P"}
    wanted = {t for t in partial if t in outputs}
    edges: list[tuple[int, int]] = []
    carried: set[int] = set()
    for index, (op, candidate) in enumerate(zip(graph.ops, taken, strict=True)):
        if index in raw:
            continue
        for tensor, need in zip(op.inputs, candidate.inputs, strict=True):
            if tensor not in partial:
                continue
            if need.kind == "P":
                results = [t for t in op.outputs if t in partial]
                edges += [(tensor, result) for result in results]
                carried.update(results)
            elif not need.is_split:  # split from a sum is a reduction of its own, at half the price
                wanted.add(tensor)
    fixed = {t for index in raw for t in graph.ops[index].outputs}
    sources = {t: inf if t in fixed else _source_bytes(view, made, taken, t) for t in partial - carried}
    early = _sink_side(view, edges, sources, wanted)
    settled = list(taken)
    for index, op in enumerate(graph.ops):
        makes_whole = bool(op.outputs) and op.outputs[0] in early
        if (makes_whole or _reads_only(early, op, taken[index])) and index not in raw:
            settled[index] = view.candidates(index)[0]
    return settled


def _reads_only(early: AbstractSet[int], op: Op, candidate: Candidate) -> bool:
    """Whether an op would take sums apart to make something whole of them: zeros of the same shape, say."""
    sums = [t for t, need in zip(op.inputs, candidate.inputs, strict=True) if need.is_partial]
    return bool(sums) and set(sums) <= early and all(sbp.is_broadcast for sbp in candidate.outputs)


def _source_bytes(view: AxisView, made: Mapping[int, Sbp], taken: list[Candidate], tensor: int) -> float:
    """What making a sum whole from gathered inputs costs, as the bytes of a sum whose reduction costs as much."""
    index, parts = view.graph.tensors[tensor].producer, view.axis.size
    candidate = taken[index]
    if parts == 1 or len(candidate.outputs) != 1:
        return inf
    seconds = gathering_seconds(view, made, index, candidate, view.candidates(index)[0])
    return seconds * view.cluster.link_rate * parts / (2 * (parts - 1))


def _sink_side(
    view: AxisView, edges: list[tuple[int, int]], sources: Mapping[int, float], wanted: set[int]
) -> set[int]:
    """The tensors that lie behind the cheapest cuts, and so are made from whole values."""
    region = nx.Graph(edges)
    behind: set[int] = set()
    for component in nx.connected_components(region):
        first = component & set(sources)
        if component & wanted >= first and all(sources[tensor] == inf for tensor in first):
            # Every sum is wanted whole where it is made: it is reduced there, and what follows is whole.
            behind |= component - first
            continue
        if component & wanted:
            costs = {tensor: sources[tensor] for tensor in first}
            behind |= _cut(view, [e for e in edges if e[0] in component], component, costs, component & wanted)
    return behind


def _cut(
    view: AxisView, edges: list[tuple[int, int]], component: set[int], sources: Mapping[int, float], wanted: set[int]
) -> set[int]:
    network = nx.DiGraph()
    for tensor in component:
        spec = view.graph.tensors[tensor]
        repeats = view.graph.repeats(spec.producer)
        capacity = (layout_bytes(spec.shape or (), spec.dtype) + _EVERY_REDUCTION) * repeats
        network.add_edge((tensor, "in"), (tensor, "out"), capacity=capacity)
    for before, after in edges:
        network.add_edge((before, "out"), (after, "in"))
    for tensor, cost in sources.items():
        network.add_edge("source", (tensor, "in"), **({} if cost == inf else {"capacity": cost + _EVERY_REDUCTION}))
    for tensor in wanted:
        network.add_edge((tensor, "out"), "sink")
    _, (near, _) = nx.minimum_cut(network, "source", "sink")
    return {tensor for tensor in component if (tensor, "in") not in near}
