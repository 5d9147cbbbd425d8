"""What every way of boxing shares: the contract, and the conversions that move no bytes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from whaleish.mesh import Mesh
from whaleish.sbp import Layout, P, Sbp
from whaleish.writer import FunctionWriter, Ref


class Boxer(ABC):
    """Writes layout changes into the graph of one process.

    Attributes:
      parts: the part numbers that this process holds, in order; every list of refs has one entry for each.
      devices: TensorFlow's names of their devices.
      gate: nodes that must have run before the step does anything that others notice: a collective, an assignment.
    """

    def __init__(self, writer: FunctionWriter, mesh: Mesh, parts: Sequence[int], devices: Sequence[str]) -> None:
        self.writer, self.mesh = writer, mesh
        self.parts, self.devices = tuple(parts), tuple(devices)
        self.gate: list[str] = []

    def box(self, refs: list[Ref], source: Layout, target: Layout, shape: tuple[int, ...], depth: int) -> list[Ref]:
        """The tensor in another layout.

        Args:
          refs: the parts' tensors in layout `source`.
          shape: of the logical tensor.
          depth: number of collectives that the tensor depends on; those of equal depth may travel together.
        """
        (a,), (b,) = source, target
        if b.is_local:
            return refs
        if a.is_local:
            mean = [self._scaled(ref, 1 / self.mesh.size, at) for ref, at in zip(refs, self.devices, strict=True)]
            return self.box(mean, (P,), target, shape, depth)
        if b.is_split and a.is_broadcast:
            return [self.cut(ref, shape, target, k) for k, ref in enumerate(refs)]
        if b.is_partial and a.is_broadcast:
            return self._summands(refs, b)
        if a.is_split and b.kind == "P":
            return [self._embed(ref, shape, source, k) for k, ref in enumerate(refs)]
        if a.is_partial and b.is_partial:
            return self._summands(self.whole(refs, a, shape, depth), b)
        if b.is_broadcast:
            return self.whole(refs, a, shape, depth)
        if a.is_partial and b.is_split:
            return self.scatter(refs, a, target, shape, depth)
        if a.is_split and b.is_split:
            return self.exchange(refs, source, target, shape, depth)
        whole = self.whole(refs, a, shape, depth)
        return self.box(whole, (Sbp("B"),), target, shape, depth)

    @abstractmethod
    def whole(self, refs: list[Ref], source: Sbp, shape: tuple[int, ...], depth: int) -> list[Ref]:
        """S or P to B: all-gather, all-reduce."""

    @abstractmethod
    def scatter(self, refs: list[Ref], source: Sbp, target: Layout, shape: tuple[int, ...], depth: int) -> list[Ref]:
        """P to S: reduce-scatter."""

    @abstractmethod
    def exchange(
        self, refs: list[Ref], source: Layout, target: Layout, shape: tuple[int, ...], depth: int
    ) -> list[Ref]:
        """S to another S: all-to-all."""

    @abstractmethod
    def inside(self, writer: FunctionWriter, region: int, bring: Callable[[Ref], Ref]) -> Boxer:
        """A boxer for a body that this one's function runs; `bring` makes a tensor an argument of the body."""

    def finish(self) -> list[str]:
        """Writes what was held back for grouping; returns the nodes that must run though nothing may read them."""
        return []

    def cut(self, ref: Ref, shape: tuple[int, ...], target: Layout, position: int) -> Ref:
        """B to S: the slice that the part at a position holds, cut where the part lives."""
        pieces = self.mesh.pieces(shape, target, self.parts[position])
        return self.slice(ref, pieces, self.devices[position])

    def slice(self, ref: Ref, pieces: Sequence[tuple[int, int]], device: str) -> Ref:
        begin = self.writer.const([start for start, _ in pieces], "int32", device)
        size = self.writer.const([length for _, length in pieces], "int32", device)
        return self.writer.add("Slice", [ref, begin, size], device=device)[0]

    def _scaled(self, ref: Ref, factor: float, device: str) -> Ref:
        return self.writer.add("Mul", [ref, self.writer.const(factor, self.writer.dtypes[ref], device)], device=device)[
            0
        ]

    def _summands(self, refs: list[Ref], target: Sbp) -> list[Ref]:
        """B to P: the first part keeps the value, the others hold the sum's zero; extremes need no zero."""
        if target.kind != "P":
            return refs
        return [
            ref if part == 0 else self.writer.add("ZerosLike", [ref], device=self.devices[k])[0]
            for k, (part, ref) in enumerate(zip(self.parts, refs, strict=True))
        ]

    def _embed(self, ref: Ref, shape: tuple[int, ...], source: Layout, position: int) -> Ref:
        """S to P: the part's slice among zeros."""
        pieces = self.mesh.pieces(shape, source, self.parts[position])
        pads = [[start, full - start - length] for (start, length), full in zip(pieces, shape, strict=True)]
        device = self.devices[position]
        return self.writer.add("Pad", [ref, self.writer.const(pads, "int32", device)], device=device)[0]


Pieces = Sequence[tuple[int, int]]


def overlap(wanted: Pieces, held: Pieces) -> list[tuple[int, int]]:
    """(start within what is held, length) along each dim of the range that two pieces of a tensor share."""
    shared = []
    for (a, wanted_length), (b, held_length) in zip(wanted, held, strict=True):
        start, end = max(a, b), min(a + wanted_length, b + held_length)
        shared.append((min(max(0, start - b), held_length), max(0, end - start)))
    return shared
