"""Costs: the work of each chunk of a step with stages, and how long it would take at the rates of a cluster."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

from whaleish.chunks import Actors, Chunk, Chunks, Key
from whaleish.cluster import Cluster
from whaleish.graph import LogicalGraph, layout_bytes
from whaleish.planner.flops import bytes_touched, flops
from whaleish.planner.moves import Move
from whaleish.planner.plan import Plan
from whaleish.planner.view import op_view
from whaleish.report.crossings import Crossing, find_crossings
from whaleish.report.explain import moved
from whaleish.report.shares import local_view
from whaleish.rewrite.expand import expand


@dataclass(frozen=True)
class Cost:
    """What a chunk takes.

    Attributes:
      ops: how many it has. flops: of all its firings, on all devices together as on one.
      seconds: of one firing, on the device that does most, boxings inside it included.
      nbytes: of what one firing makes for others, on the device that has most of it.
      moves: its boxings, each with the bytes that one firing sends.
    """

    ops: int
    flops: float
    seconds: float
    nbytes: int
    moves: tuple[tuple[Move, float], ...]


def cost_of(chunk: Chunk, cluster: Cluster) -> Cost:
    """The cost of a chunk. Where micro-batches differ in length it is that of the first, than which none is longer."""
    graph, plan = expand(chunk.graph, chunk.plan)
    mesh = plan.mesh
    first = mesh.parts_at(0)
    busy, count, total = dict.fromkeys(first, 0.0), 0, 0.0
    for index, (op, choice) in enumerate(zip(graph.ops, plan.choices, strict=True)):
        if op.type == "Placeholder" or graph.is_constant(index):
            continue
        view, repeats = op_view(graph, index), graph.repeats(index)
        count, total = count + 1, total + flops(view) * repeats
        for part in first:
            own = local_view(view, choice.inputs, choice.outputs, mesh, part)
            busy[part] += cluster.compute_seconds(flops(own), bytes_touched(own)) * repeats
    moves = tuple((move, _of_one_firing(move, plan)) for move in moved(graph, plan))
    boxing = sum(cluster.boxing_seconds(nbytes, len(mesh.devices)) for _, nbytes in moves)
    held = (sum(_bytes_given(graph, plan, part)) for part in first)
    return Cost(count, total, max(busy.values()) + boxing, max(held), moves)


def _of_one_firing(move: Move, plan: Plan) -> float:
    """What each micro-batch has a part of is boxed part by part, and what is the same for all by each of them."""
    times = [axis for axis, own in enumerate(plan.mesh.axes) if own.time]
    same = all(layout[axis].is_broadcast for axis in times for layout in (move.source, move.target))
    return move.nbytes if same else move.nbytes / prod(plan.mesh.axes[axis].size for axis in times)


def _bytes_given(graph: LogicalGraph, plan: Plan, part: int) -> Iterable[int]:
    for tensor, layout in zip(graph.outputs, plan.outputs, strict=True):
        spec = graph.tensors[tensor]
        yield layout_bytes(plan.mesh.local_shape(spec.shape or (), layout, part), spec.dtype)


def actor_seconds(
    graph: LogicalGraph, chunks: Chunks, actors: Actors, plan: Plan, costs: dict[Key, Cost], cluster: Cluster
) -> dict[str, float]:
    """How long one firing of each actor would take, for `runtime.predict`.

    In one process, where no actors transfer, whoever reads what another stage made takes the time to fetch it too.
    """
    assert plan.pipelining is not None
    seconds = {actor: costs[key].seconds for actor, key in actors.chunk_of.items()}
    crossings = find_crossings(graph, chunks, plan.pipelining.meshes)
    if not actors.loads:
        fetched = _first_readers(chunks, crossings)
        for actor, key in actors.chunk_of.items():
            devices = len(plan.pipelining.meshes[key.stage].devices)
            seconds[actor] += sum(cluster.boxing_seconds(c.nbytes[0], devices) for c in fetched.get(key, ()))
    made = {chunk.key: chunk for chunk in chunks.all}
    for sender, pieces in actors.loads.items():
        nbytes = 0
        for key, number, part in pieces:
            give, mesh = made[key].gives[number], plan.pipelining.meshes[key.stage]
            spec = graph.tensors[give.tensor]
            nbytes += layout_bytes(mesh.local_shape(spec.shape or (), give.arrival, part), spec.dtype)
        for end in (sender, actors.graph.receiver_of[sender]):
            seconds[end] = cluster.boxing_seconds(nbytes, 1)
    return seconds


def _first_readers(chunks: Chunks, crossings: list[Crossing]) -> dict[Key, list[Crossing]]:
    """For each chunk what it fetches from other stages: of what several chunks of a stage read the first."""
    left = {(c.giver, c.give, c.to): c for c in crossings}
    gives = {chunk.key: chunk.gives for chunk in chunks.all}
    found: dict[Key, list[Crossing]] = {}
    for chunk in chunks.all:
        for key, number in chunk.takes:
            crossing = left.pop((key, gives[key][number], chunk.key.stage), None)
            if crossing is not None:
                found.setdefault(chunk.key, []).append(crossing)
    return found
