"""Crossings: what the stages of a step hand to each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from whaleish.chunks import Chunks, Give, Key
from whaleish.graph import LogicalGraph, layout_bytes
from whaleish.mesh import Mesh
from whaleish.runtime import EACH


@dataclass(frozen=True)
class Crossing:
    """A tensor that a chunk gives to another stage.

    Attributes:
      giver: the chunk. to: the stage that reads it.
      give: what is given. joined: whether it is put together over the micro-batches on the way.
      nbytes: bytes that come to all devices of the other stage, for each time that it crosses: every micro-batch, or
        once.
      each: whether that is every micro-batch.
    """

    giver: Key
    to: int
    give: Give
    nbytes: tuple[int, ...]
    each: bool

    @property
    def joined(self) -> bool:
        return self.give.axis is not None


def find_crossings(graph: LogicalGraph, chunks: Chunks, meshes: Sequence[Mesh]) -> list[Crossing]:
    """All crossings of a step, in the order of its chunks. What two chunks of one stage read crosses once.

    Args:
      graph: of the step. meshes: of its stages.
    """
    giving = {chunk.key: chunk for chunk in chunks.all}
    order = {chunk.key: place for place, chunk in enumerate(chunks.all)}
    found: dict[tuple[int, int, int, bool], Crossing] = {}
    for reader in chunks.all:
        there = meshes[reader.key.stage]
        for key, number in reader.takes:
            here, give = meshes[key.stage], giving[key].gives[number]
            each = key.phase == EACH and reader.key.phase == EACH
            place = (order[key], reader.key.stage, number, each)
            if here.devices != there.devices and place not in found:
                spec = graph.tensors[give.tensor]
                times = range(here.micro_batches if each else 1)
                pieces = [_pieces(here, there, give, spec.shape or (), time) for time in times]
                nbytes = tuple(sum(layout_bytes(shape, spec.dtype) for shape in shapes) for shapes in pieces)
                found[place] = Crossing(key, reader.key.stage, give, nbytes, each)
    return [found[place] for place in sorted(found)]


def _pieces(here: Mesh, there: Mesh, give: Give, shape: tuple[int, ...], time: int) -> list[tuple[int, ...]]:
    """The shape of what comes to each device that did not have it."""
    space, found = here.in_space, []
    for place, device in enumerate(there.devices):
        giver = place % len(here.devices)
        if here.devices[giver] != device:
            part = here.number(here.with_time(space.coordinate(giver), time))
            found.append(here.local_shape(shape, give.arrival, part))
    return found
