"""Horovod's process sets: the ranks that communicate along an axis of a mesh, or by transfers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from whaleish.boxing.horovod import EVERYBODY, Sets
from whaleish.mesh import Mesh
from whaleish.world import World

if TYPE_CHECKING:
    from whaleish.runtime import ActorGraph

_made: dict[tuple[int, ...], int] = {}
"""Ranks -> Horovod's number of their set. Sets are made once and kept."""


def process_sets(mesh: Mesh, world: World) -> Sets:
    """The sets in which this rank communicates on a mesh that it is one of.

    To be called by all ranks with the same mesh, in the same order: making a set is a collective of all ranks.
    """
    (found,) = stage_sets([mesh], world)
    assert found is not None
    return found


def stage_sets(meshes: Sequence[Mesh], world: World) -> list[Sets | None]:
    """For each stage's mesh what `process_sets` gives; None where this rank is none of its devices."""
    found: list[Sets | None] = []
    for mesh in meshes:
        space = mesh.in_space
        along = [_along(space, axis, world.size) for axis in range(len(space.axes))]
        together = set_of(tuple(sorted(mesh.devices)), world.size)
        here = space.devices.index(world.rank) if world.rank in space.devices else None
        own = () if here is None else mesh.with_time([sets[here] for sets in along], EVERYBODY)
        found.append(None if here is None else Sets(own, together))
    return found


def _along(mesh: Mesh, axis: int, size: int) -> list[int]:
    """For each part the set of its group along an axis."""
    groups = [mesh.group(axis, part) for part in range(mesh.size)]
    return [set_of(tuple(sorted(mesh.devices[member] for member in group)), size) for group in groups]


def transfer_sets(graph: ActorGraph, world: World) -> dict[tuple[int, int], int]:
    """For each two ranks (the lower first) between which an actor graph has transfers the number of their set.

    The processes of the graph are ranks. To be called as `process_sets` is.
    """
    if missing := {queue.process for queue in graph.queues} - set(range(world.size)):
        raise ValueError(
            f"the actors' queues are in process {max(missing)}, and there are {world.size} ranks, from 0: start more, "
            "or put the queues into those that there are"
        )
    ends = [sorted(graph.queue_of[end].process for end in pair) for pair in graph.receiver_of.items()]
    pairs = sorted({(low, high) for low, high in ends if low != high})
    return {pair: set_of(pair, world.size) for pair in pairs}


def set_of(ranks: tuple[int, ...], size: int) -> int:
    """The number of the set of some of so many ranks, which go upwards; made if it has not been, by all ranks."""
    if len(ranks) in (1, size):  # one alone sends nothing
        return EVERYBODY
    if ranks not in _made:
        import horovod.tensorflow as hvd
        from horovod.common import process_sets as known

        # The program may have made the same set, and Horovod makes no set twice; what there is only this tells.
        there = {tuple(members): number for number, members in known._basics._get_process_set_ids_and_ranks().items()}
        _made[ranks] = there[ranks] if ranks in there else _add(ranks, hvd)
    return _made[ranks]


def _add(ranks: tuple[int, ...], hvd: Any) -> int:
    try:
        return int(hvd.add_process_set(list(ranks)).process_set_id)
    except Exception as error:
        raise RuntimeError(
            f"Horovod makes no process set for the ranks {list(ranks)}, among which this step communicates ({error}). "
            "Where the program calls hvd.init() itself, let it call wh.init() before, or "
            'hvd.init(process_sets="dynamic"), or start it by `whaleish run`'
        ) from error
