"""Routes: the cheapest way from one layout to another, as hops that are one collective each.

A hop changes the layout on one axis, among the parts that differ only there; or it is an exchange, in which every part
fetches what it lacks from whoever has it, over the whole mesh. Not every change can be made on one axis alone: an inner
axis cuts what the outer ones leave, so where it splits the same dim, (S(0), S(0)) -> (B, S(0)) is no gathering over the
outer axis. The cheapest sequence is found by Dijkstra's algorithm over the layouts in between.
"""

from __future__ import annotations

import functools
import heapq
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf, prod
from typing import NamedTuple

from whaleish.boxing.volume import volume
from whaleish.mesh import Mesh
from whaleish.sbp import B, Layout, S, Sbp

Pieces = Sequence[tuple[int, int]]


class Hop(NamedTuple):
    """One collective, or a change that sends nothing.

    Attributes:
      axis: the axis on which it takes place; None: an exchange over the whole mesh.
      target: the layout after it.
      volume: bytes that all devices send together.
    """

    axis: int | None
    target: Layout
    volume: float


Route = tuple[Hop, ...]


def find_route(mesh: Mesh, source: Layout, target: Layout, shape: tuple[int, ...], nbytes: float) -> Route | None:
    """The hops from one layout of a logical tensor to another that send the fewest bytes, and of those the fewest hops.

    Args:
      shape, nbytes: of the logical tensor.

    Returns:
      None where there is no way: a value cannot become the parts' own (L), for instance.
    """
    scaled = _find_route(mesh, source, target, shape)
    return scaled and tuple(hop._replace(volume=hop.volume * nbytes) for hop in scaled)


def route_volume(mesh: Mesh, source: Layout, target: Layout, shape: tuple[int, ...], nbytes: float) -> float:
    """Bytes that all devices send together from one layout to another; infinite where there is no way."""
    route = find_route(mesh, source, target, shape, nbytes)
    return inf if route is None else sum(hop.volume for hop in route)


@functools.lru_cache(maxsize=16384)
def _find_route(mesh: Mesh, source: Layout, target: Layout, shape: tuple[int, ...]) -> Route | None:
    """`find_route` for a tensor of one byte."""
    if source == target:
        return ()
    best: dict[Layout, tuple[float, int]] = {source: (0.0, 0)}
    came: dict[Layout, tuple[Layout, Hop]] = {}
    serial = itertools.count()
    queue = [(0.0, 0, next(serial), source)]
    while queue:
        moved, count, _, layout = heapq.heappop(queue)
        if layout == target:
            hops = []
            while layout != source:
                layout, hop = came[layout]
                hops.append(hop)
            return tuple(reversed(hops))
        if (moved, count) > best[layout]:
            continue
        for hop in _hops(mesh, layout, source, target, shape):
            cost = (round(moved + hop.volume, 9), count + 1)
            if cost < best.get(hop.target, (inf, 0)):
                best[hop.target], came[hop.target] = cost, (layout, hop)
                heapq.heappush(queue, (*cost, next(serial), hop.target))
    return None


def _hops(mesh: Mesh, layout: Layout, source: Layout, target: Layout, shape: tuple[int, ...]) -> Iterator[Hop]:
    for axis, here in enumerate(layout):
        # What goes by way of another layout in time would wait for all micro-batches.
        direct = len(layout) == 1 or mesh.axes[axis].time
        between = [] if direct else [B, *(S(dim) for dim in range(len(shape)))]
        for there in dict.fromkeys([target[axis], source[axis], *between]):
            changed = (*layout[:axis], there, *layout[axis + 1 :])
            if mesh.axes[axis].apart and not _by_itself(here, there):
                continue
            if there != here and _alone(layout, axis, there) and _exists(mesh, changed, shape):
                moved = volume(here, there, 1.0, mesh.axes[axis].size)
                if moved < inf:
                    yield Hop(axis, changed, 0.0 if mesh.axes[axis].time else moved * _copies(mesh, layout, axis))
    pairs = enumerate(zip(mesh.axes, layout, target, strict=True))
    free = [k for k, (axis, a, b) in pairs if not axis.time and a != b and _plain(a) and _plain(b)]
    free = [k for k in free if not _crosses_time(mesh, layout, k, target[k])]
    if len(layout) > 1 and free:
        changed = tuple(target[k] if k in free else sbp for k, sbp in enumerate(layout))
        if _exists(mesh, changed, shape):
            yield Hop(None, changed, Exchange(mesh, layout, mesh, changed, shape).volume())


def _copies(mesh: Mesh, layout: Layout, axis: int) -> int:
    """How many groups along an axis move the same much; what is the same at all times moves once."""
    others = ((k, a) for k, a in enumerate(mesh.axes) if k != axis and not layout[k].is_split)
    return prod(a.size for k, a in others if not (a.time and layout[k].is_broadcast))


def _by_itself(here: Sbp, there: Sbp) -> bool:
    """Whether a part can change its entry without the others."""
    return here.is_broadcast or there.is_local or (here.is_split and there.is_partial)


def _plain(sbp: Sbp) -> bool:
    return sbp.is_split or sbp.is_broadcast


def _alone(layout: Layout, axis: int, there: Sbp) -> bool:
    """Whether an axis can change its entry while the others keep theirs.

    Axes further in must not split a dim that is gathered or cut here. And a sum of maxima is no maximum of sums: what
    is partial further in, in another way, is made whole first.
    """
    here = layout[axis]
    dims = {sbp.dim for sbp in (here, there) if sbp.is_split}
    for inner in layout[axis + 1 :]:
        if inner.is_split and inner.dim in dims:
            return False
        if not _plain(here) and not _plain(inner) and inner.kind != here.kind:
            return False
    return True


def _crosses_time(mesh: Mesh, layout: Layout, axis: int, there: Sbp) -> bool:
    """Whether to change its entry an axis would need what is there at another time.

    An axis of time further in cuts what this axis leaves: by rows of each part and not of the whole.
    """
    dims = {sbp.dim for sbp in (layout[axis], there) if sbp.is_split}
    inner = zip(mesh.axes[axis + 1 :], layout[axis + 1 :], strict=True)
    return any(later.time and sbp.is_split and sbp.dim in dims for later, sbp in inner)


def _exists(mesh: Mesh, layout: Layout, shape: tuple[int, ...]) -> bool:
    """Whether all cuts fall on whole units."""
    if all(sbp.unit == 1 for sbp in layout):
        return True
    try:
        mesh.normal(layout, shape)
    except ValueError:
        return False
    return True


@dataclass(frozen=True)
class Exchange:
    """An all-to-all: every part fetches what it lacks of a tensor from parts that have it.

    Attributes:
      mesh, source: how the tensor lies before, in ranges that are split or whole.
      target: how it lies afterwards, on the mesh `after`. `senders` and `volume` are for meshes with the same parts
        under the same numbers; a `Transfer` says who sends between others.
      shape: of the logical tensor.
      axis: the only axis along which parts talk; None: all with all.
    """

    mesh: Mesh
    source: Layout
    after: Mesh
    target: Layout
    shape: tuple[int, ...]
    axis: int | None = None

    def members(self, part: int) -> tuple[int, ...]:
        """The parts that take part in the collective in which a part does: those of its own time."""
        if self.axis is not None:
            return self.mesh.group(self.axis, part)
        return tuple(other for other in range(self.mesh.size) if self.mesh.time(other) == self.mesh.time(part))

    def senders(self, part: int) -> list[int]:
        """The parts from which a part fetches, which together hold what it wants once; itself among them.

        They stand where it stands on the axes over which the tensor is not split.
        """
        place = self.mesh.coordinate(part)
        return [
            other
            for other in self.members(part)
            if all(
                a == b or s.is_split for a, b, s in zip(place, self.mesh.coordinate(other), self.source, strict=True)
            )
        ]

    def wanted(self, part: int) -> tuple[int, ...]:
        """The shape of what a part holds afterwards."""
        return self.after.local_shape(self.shape, self.target, part)

    def block(self, sender: int, receiver: int) -> list[tuple[int, int]]:
        """(start within what the sender holds, length) along each dim of what goes to a receiver."""
        wanted = self.after.pieces(self.shape, self.target, receiver)
        return overlap(wanted, self.mesh.pieces(self.shape, self.source, sender))

    def volume(self) -> float:
        """What all parts lack, as a share of the logical tensor (which may be above 1)."""
        total = prod(self.shape)
        lacking = sum(prod(self.wanted(k)) - self._there(k) for k in range(self.mesh.size))
        return lacking / total if total else 0.0

    def _there(self, receiver: int) -> int:
        """How much of what a part wants is on its device already."""
        own = self.mesh.device(receiver)
        return sum(_count(self.block(k, receiver)) for k in self.senders(receiver) if self.mesh.device(k) == own)


def overlap(wanted: Pieces, held: Pieces) -> list[tuple[int, int]]:
    """(start within what is held, length) along each dim of the range that two pieces of a tensor share."""
    shared = []
    for (a, wanted_length), (b, held_length) in zip(wanted, held, strict=True):
        start, end = max(a, b), min(a + wanted_length, b + held_length)
        shared.append((min(max(0, start - b), held_length), max(0, end - start)))
    return shared


def _count(pieces: Pieces) -> int:
    return prod(length for _, length in pieces)
