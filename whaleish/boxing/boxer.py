"""What every way of boxing shares: the contract, and the conversions that move no bytes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from whaleish.boxing.route import Exchange, Hop, find_route
from whaleish.boxing.transfer import Transfer
from whaleish.boxing.turns import Turns
from whaleish.mesh import Axis, Mesh
from whaleish.sbp import Layout, P, Sbp, format_layout
from whaleish.writer import FunctionWriter, Ref

NARROW = frozenset(["bfloat16", "float16"])
"""Types that are added up in float32: rounded after each summand, little would be left of a sum of many."""


def sums_in(dtype: str) -> str:
    """The type in which sums of a type are added up."""
    return "float32" if dtype in NARROW else dtype


@dataclass(frozen=True)
class Group:
    """The parts that differ only in where they stand on one axis, and what they hold together.

    Attributes:
      number: of the axis in the mesh.
      members: the mesh's numbers of the parts, in the order of the axis.
      places: which of the boxer's parts these are, those that live in this process.
      positions: where each of `places` stands on the axis.
      shape: of the tensor that the members hold together.
      around: the layout of the logical tensor, with B on this axis; logical: its shape.
    """

    number: int
    axis: Axis
    members: tuple[int, ...]
    places: tuple[int, ...]
    positions: tuple[int, ...]
    shape: tuple[int, ...]
    around: Layout
    logical: tuple[int, ...]

    def pieces(self, sbp: Sbp, position: int) -> tuple[tuple[int, int], ...]:
        """(start, length) along each dim of what the member at a position holds."""
        return Mesh((self.axis,)).pieces(self.shape, (sbp,), position)

    def local_shape(self, sbp: Sbp, position: int) -> tuple[int, ...]:
        return tuple(length for _, length in self.pieces(sbp, position))


class Boxing(NamedTuple):
    """A tensor to be had in another layout.

    Attributes:
      refs: the parts' tensors in layout `source`. shape: of the logical tensor.
    """

    refs: list[Ref]
    source: Layout
    target: Layout
    shape: tuple[int, ...]


class Boxer(ABC):
    """Writes layout changes into the graph of one process.

    Attributes:
      parts: the part numbers that this process holds, in order; every list of refs has one entry for each.
      devices: TensorFlow's names of their devices.
      gate: nodes that must have run before the step does anything that others notice: a collective, an assignment.
      turns: of the micro-batches, where there are several.
    """

    def __init__(self, writer: FunctionWriter, mesh: Mesh, parts: Sequence[int], devices: Sequence[str]) -> None:
        self.writer, self.mesh = writer, mesh
        self.parts, self.devices = tuple(parts), tuple(devices)
        self.gate: list[str] = []
        self.turns = Turns()

    def box(self, refs: list[Ref], source: Layout, target: Layout, shape: tuple[int, ...], depth: int) -> list[Ref]:
        """The tensor in another layout.

        Args:
          refs: the parts' tensors in layout `source`.
          shape: of the logical tensor.
          depth: number of collectives that the tensor depends on; those of equal depth may travel together.
        """
        route = find_route(self.mesh, source, target, shape, 1.0)
        if route is None:
            raise ValueError(f"a tensor cannot go from {source} to {target}")
        for hop in route:
            refs = self._hop(refs, source, hop, shape, depth)
            source, depth = hop.target, depth + (hop.volume > 0)
        return refs

    def arrange(self, refs: list[Ref], flat: Sbp, target: Layout, shape: tuple[int, ...]) -> list[Ref]:
        """A tensor that is split evenly over all parts, as over a single axis, in a layout of the mesh."""
        return self.exchange(refs, Exchange(self.mesh.flat, (flat,), self.mesh, target, shape))

    def gather_rows(self, ids: Boxing, rows: Boxing, depth: int) -> tuple[list[Ref], list[Ref]]:
        """Ids, and the rows that are to be added up by them; repeated ids may be merged on the way."""
        return self.box(*ids, depth), self.box(*rows, depth)

    def _hop(self, refs: list[Ref], source: Layout, hop: Hop, shape: tuple[int, ...], depth: int) -> list[Ref]:
        axis = hop.axis
        if axis is not None and self.mesh.axes[axis].size == 1:
            return refs  # the only part holds everything, whatever that is called
        if axis is None or (source[axis].is_split and hop.target[axis].is_split):
            return self.exchange(refs, Exchange(self.mesh, source, self.mesh, hop.target, shape, axis))
        made = list(refs)
        seen: dict[tuple[Ref, ...], list[Ref]] = {}  # where groups hold the same tensors, one does it for all
        for group in self._groups(axis, source, shape):
            own = [refs[place] for place in group.places]
            key = tuple(own)
            if key not in seen:
                seen[key] = self._along(group, own, source[axis], hop.target[axis], depth)
            for place, ref in zip(group.places, seen[key], strict=True):
                made[place] = ref
        return made

    def _groups(self, number: int, layout: Layout, shape: tuple[int, ...]) -> list[Group]:
        """The groups along an axis, of those parts that live here."""
        mesh, found = self.mesh, {}
        around = (*layout[:number], Sbp("B"), *layout[number + 1 :])
        for part in self.parts:
            members = mesh.group(number, part)
            if members not in found:
                places = tuple(place for place, own in enumerate(self.parts) if own in members)
                positions = tuple(members.index(self.parts[place]) for place in places)
                together = mesh.local_shape(shape, around, part)
                found[members] = Group(number, mesh.axes[number], members, places, positions, together, around, shape)
        return list(found.values())

    def _along(self, group: Group, refs: list[Ref], a: Sbp, b: Sbp, depth: int) -> list[Ref]:
        """One axis: the members' tensors, from what they hold as `a` to what they hold as `b`."""
        if b.is_local:
            return refs
        if a.is_local:
            mean = [self._scaled(ref, 1 / group.axis.size, group, k) for k, ref in enumerate(refs)]
            return self._along(group, mean, P, b, depth)
        if b.is_split and a.is_broadcast:
            cut = [self._cut(group, ref, b, k) for k, ref in enumerate(refs)]
            if group.axis.time:
                for turn, ref in zip(group.positions, cut, strict=True):
                    self.turns.begin(turn, ref)
            return cut
        if b.is_partial and a.is_broadcast:
            return self._summands(group, refs, b)
        if a.is_split and b.kind == "P":
            return [self._embed(group, ref, a, k) for k, ref in enumerate(refs)]
        if a.is_partial and b.is_split:
            return self.scatter(group, refs, a, b, depth)
        whole = self.whole(group, refs, a, depth)
        return whole if b.is_broadcast else self._along(group, whole, Sbp("B"), b, depth)

    @abstractmethod
    def whole(self, group: Group, refs: list[Ref], source: Sbp, depth: int) -> list[Ref]:
        """S or P to B: all-gather, all-reduce."""

    @abstractmethod
    def scatter(self, group: Group, refs: list[Ref], source: Sbp, target: Sbp, depth: int) -> list[Ref]:
        """P to S: reduce-scatter."""

    @abstractmethod
    def exchange(self, refs: list[Ref], exchange: Exchange) -> list[Ref]:
        """All-to-all."""

    @abstractmethod
    def inside(self, writer: FunctionWriter, region: int, bring: Callable[[Ref], Ref]) -> Boxer:
        """A boxer for a body that this one's function runs; `bring` makes a tensor an argument of the body."""

    def finish(self) -> list[str]:
        """Writes what was held back for grouping; returns the nodes that must run though nothing may read them."""
        return []

    def device(self, group: Group, k: int) -> str:
        """The device of the group's k-th part in this process."""
        return self.devices[group.places[k]]

    def slice(self, ref: Ref, pieces: Sequence[tuple[int, int]], device: str) -> Ref:
        begin = self.writer.const([start for start, _ in pieces], "int32", device)
        size = self.writer.const([length for _, length in pieces], "int32", device)
        return self.writer.add("Slice", [ref, begin, size], device=device)[0]

    def assemble(self, exchange: Exchange, receiver: int, blocks: Mapping[int, Ref], device: str) -> Ref:
        """What a part holds after an exchange, from the blocks that its senders sent."""
        mesh, source = exchange.mesh, exchange.source
        full = [k for k in sorted(blocks) if all(length for _, length in exchange.block(k, receiver))]
        if not full:
            dtype = self.writer.dtypes[next(iter(blocks.values()))]
            return self.writer.const(np.zeros(exchange.wanted(receiver)), dtype, device)

        def under(axis: int, parts: Sequence[int]) -> Ref:
            if len(parts) == 1:
                return blocks[parts[0]]
            by_position: dict[int, list[int]] = {}
            for part in parts:
                by_position.setdefault(mesh.coordinate(part)[axis], []).append(part)
            pieces = [under(axis + 1, by_position[position]) for position in sorted(by_position)]
            return self.join(pieces, source[axis].dim, device)

        return under(0, full)

    def land(self, transfer: Transfer, receiver: int, blocks: Mapping[int, Ref], device: str) -> Ref:
        """What a part holds when a tensor has arrived, from the blocks that its senders sent; summands are added up."""
        kinds = {sbp.kind for sbp in transfer.source if sbp.is_partial or sbp.is_local}
        if kinds - {"P"}:
            raise ValueError(
                f"a tensor in {format_layout(transfer.source)} is made whole before it goes to other devices"
            )
        summands = [
            self.assemble(transfer.arrival, receiver, {sender: blocks[sender] for sender in senders}, device)
            for senders in transfer.senders(receiver)
        ]
        return summands[0] if len(summands) == 1 else self.add_up(summands, device)

    def add_up(self, refs: Sequence[Ref], device: str) -> Ref:
        """The sum of tensors of one type. Narrow ones are added in float32, and rounded once."""
        dtype = self.writer.dtypes[refs[0]]
        (total,) = self.writer.add("AddN", [self.wide(ref, device) for ref in refs], device=device)
        return self.cast(total, dtype, device)

    def wide(self, ref: Ref, device: str) -> Ref:
        """The tensor in the type in which sums of it are added."""
        return self.cast(ref, sums_in(self.writer.dtypes[ref]), device)

    def cast(self, ref: Ref, dtype: str, device: str) -> Ref:
        """The tensor in a type."""
        if self.writer.dtypes[ref] == dtype:
            return ref
        return self.writer.add("Cast", [ref], device=device, DstT=dtype)[0]

    def join(self, refs: Sequence[Ref], dim: int, device: str) -> Ref:
        """The tensors one after another along a dim."""
        if len(refs) == 1:
            return refs[0]
        return self.writer.add("ConcatV2", [*refs, self.writer.const(dim, "int32", device)], device=device)[0]

    def _cut(self, group: Group, ref: Ref, target: Sbp, k: int) -> Ref:
        """B to S: the slice that a part holds, cut where the part lives."""
        return self.slice(ref, group.pieces(target, group.positions[k]), self.device(group, k))

    def _scaled(self, ref: Ref, factor: float, group: Group, k: int) -> Ref:
        device = self.device(group, k)
        return self.writer.add("Mul", [ref, self.writer.const(factor, self.writer.dtypes[ref], device)], device=device)[
            0
        ]

    def _summands(self, group: Group, refs: list[Ref], target: Sbp) -> list[Ref]:
        """B to P: the first part keeps the value, the others hold the sum's zero; extremes need no zero."""
        if target.kind != "P":
            return refs
        return [
            ref if position == 0 else self.writer.add("ZerosLike", [ref], device=self.device(group, k))[0]
            for k, (position, ref) in enumerate(zip(group.positions, refs, strict=True))
        ]

    def _embed(self, group: Group, ref: Ref, source: Sbp, k: int) -> Ref:
        """S to P: the part's slice among zeros."""
        pieces = group.pieces(source, group.positions[k])
        pads = [[start, full - start - length] for (start, length), full in zip(pieces, group.shape, strict=True)]
        device = self.device(group, k)
        return self.writer.add("Pad", [ref, self.writer.const(pads, "int32", device)], device=device)[0]
