"""Meshes: devices arranged along named axes, and the piece of a tensor that each of them holds."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TypeVar

from whaleish.sbp import B, Layout, S, Sbp

Shape = tuple[int, ...]
T = TypeVar("T")


@dataclass(frozen=True)
class Axis:
    """One axis of a mesh.

    Attributes:
      name: what plans call it.
      size: how many parts it has.
      shares: relative sizes of the parts; None: as equal as can be, the first N mod p parts one longer.
      time: whether the parts are on the same device, one after another: micro-batches.
      apart: whether the parts of an axis of time are in functions of their own: a part can be cut out of the whole, but
        the whole is not made of them there.
    """

    name: str
    size: int
    shares: tuple[int, ...] | None = None
    time: bool = False
    apart: bool = False

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError(f"axis {self.name!r} has size {self.size}; an axis has at least one part")
        if self.shares is not None and (len(self.shares) != self.size or min(self.shares) < 0 or not sum(self.shares)):
            raise ValueError(
                f"axis {self.name!r} of size {self.size} has shares {self.shares}; "
                f"give {self.size} non-negative integers that are not all zero"
            )

    def cuts(self, length: int, unit: int = 1) -> tuple[int, ...]:
        """The `size + 1` positions at which a dim of `length` elements is cut.

        Whole units are dealt out by largest remainder, ties to the earlier part.
        """
        return _cuts(length, unit, self.size, self.shares)

    def lengths(self, before: Iterable[int], unit: int = 1) -> set[int]:
        """How long the parts are into which a dim of any of these lengths is cut."""
        return {b - a for length in before for a, b in itertools.pairwise(self.cuts(length, unit))}

    def normal(self, sbp: Sbp, *lengths: int) -> Sbp:
        """The same split with the smallest unit that has the same cuts, so that equal layouts compare equal.

        Args:
          lengths: of the dim that is split; several, where outer axes have cut it into parts of different lengths.
        """
        if not sbp.is_split or sbp.unit == 1:
            return sbp
        return S(sbp.dim, _smallest_unit(self, lengths, sbp.unit))


@functools.lru_cache(maxsize=4096)
def _cuts(length: int, unit: int, size: int, shares: tuple[int, ...] | None) -> tuple[int, ...]:
    if length % unit:
        raise ValueError(f"a dim of {length} elements has no cuts on multiples of {unit}")
    units = length // unit
    weights = shares or (1,) * size
    total = sum(weights)
    counts = [units * weight // total for weight in weights]
    remainders = [units * weight % total for weight in weights]
    for part in sorted(range(size), key=lambda k: (-remainders[k], k))[: units - sum(counts)]:
        counts[part] += 1
    cuts = [0]
    for count in counts:
        cuts.append(cuts[-1] + count * unit)
    return tuple(cuts)


@functools.lru_cache(maxsize=4096)
def _smallest_unit(axis: Axis, lengths: tuple[int, ...], unit: int) -> int:
    wanted = [axis.cuts(length, unit) for length in lengths]
    units = (u for u in range(1, unit + 1) if unit % u == 0)
    return next(u for u in units if [axis.cuts(length, u) for length in lengths] == wanted)


@dataclass(frozen=True)
class Mesh:
    """Devices arranged along axes, the last axis fastest.

    Attributes:
      axes: outer to inner.
      devices: indices into the cluster's devices, one for each place on the axes that are not of time; the default is
        0, 1, 2...
    """

    axes: tuple[Axis, ...]
    devices: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        count = prod(axis.size for axis in self.axes if not axis.time)
        if not self.devices:
            object.__setattr__(self, "devices", tuple(range(count)))
        if len(self.devices) != count or len(set(self.devices)) != count:
            raise ValueError(f"a mesh of {count} parts needs {count} different devices; it was given {self.devices}")

    @property
    def size(self) -> int:
        """The number of parts."""
        return prod(axis.size for axis in self.axes)

    @property
    def in_space(self) -> Mesh:
        """The devices, without axes of time."""
        return Mesh(tuple(axis for axis in self.axes if not axis.time), self.devices)

    @property
    def in_turns(self) -> Mesh:
        """The same mesh, with the parts of axes of time in functions of their own."""
        return Mesh(tuple(replace(axis, apart=axis.time) for axis in self.axes), self.devices)

    def place(self, part: int) -> int:
        """The number of a part's place among the devices, which parts that differ only in time share."""
        return _places(self)[part]

    def device(self, part: int) -> int:
        """The device that a part is on."""
        return self.devices[self.place(part)]

    def time(self, part: int) -> tuple[int, ...]:
        """When a part has its turn: where it stands on the axes of time."""
        return tuple(at for axis, at in zip(self.axes, self.coordinate(part), strict=True) if axis.time)

    def without_time(self, entries: Sequence[T]) -> tuple[T, ...]:
        """Of a coordinate or layout, what it says of the axes that are not of time."""
        return tuple(entry for axis, entry in zip(self.axes, entries, strict=True) if not axis.time)

    def with_time(self, entries: Iterable[T], fill: T) -> tuple[T, ...]:
        """The inverse of `without_time`: the same for every axis of time."""
        rest = iter(entries)
        return tuple(fill if axis.time else next(rest) for axis in self.axes)

    def at_all_times(self, layout: Layout) -> Layout:
        """The layout of what is the same at all times, from its entries for the other axes."""
        return self.with_time(layout, B)

    @property
    def micro_batches(self) -> int:
        """How many turns a device has; 1 where there is no axis of time."""
        return prod(axis.size for axis in self.axes if axis.time)

    def at_time(self, part: int, time: int) -> int:
        """The part in the same place that has another turn."""
        return self.number(self.with_time(self.without_time(self.coordinate(part)), time))

    def parts_at(self, time: int) -> list[int]:
        """The parts that have a turn; all where there is no axis of time."""
        return [part for part in range(self.size) if part == self.at_time(part, time)]

    def coordinate(self, part: int) -> tuple[int, ...]:
        """Where part number `part` stands on each axis."""
        place = []
        for axis in reversed(self.axes):
            part, position = divmod(part, axis.size)
            place.append(position)
        return tuple(reversed(place))

    def number(self, coordinate: Iterable[int]) -> int:
        """The part that stands there: the inverse of `coordinate`."""
        number = 0
        for axis, position in zip(self.axes, coordinate, strict=True):
            number = number * axis.size + position
        return number

    @property
    def flat(self) -> Mesh:
        """The same devices along a single axis, with equal shares."""
        return Mesh((Axis("d", len(self.devices)),), self.devices)

    def group(self, axis: int, part: int) -> tuple[int, ...]:
        """The parts that differ from `part` only in where they stand on an axis, in its order."""
        return _groups(self, axis)[part]

    def first_alike(self, part: int, *layouts: Layout) -> int:
        """The first part that holds what `part` holds in all of these layouts: it stands at 0 where all are B."""
        return self.number(
            0 if all(layout[axis].is_broadcast for layout in layouts) else position
            for axis, position in enumerate(self.coordinate(part))
        )

    def distinct(self, parts: Iterable[int], layout: Layout) -> list[int]:
        """Of some parts those that hold different pieces of what lies so, the first of each."""
        found: dict[int, int] = {}
        for part in parts:
            found.setdefault(self.first_alike(part, layout), part)
        return list(found.values())

    def pieces(self, shape: Sequence[int], layout: Layout, part: int) -> tuple[tuple[int, int], ...]:
        """(start, length) along each dim of the piece of a logical tensor that a part holds.

        For partial layouts the piece covers the whole range and holds one summand of it.
        """
        starts, lengths = [0] * len(shape), list(shape)
        for axis, position, sbp in zip(self.axes, self.coordinate(part), layout, strict=True):
            if sbp.is_split:
                cuts = axis.cuts(lengths[sbp.dim], sbp.unit)
                starts[sbp.dim] += cuts[position]
                lengths[sbp.dim] = cuts[position + 1] - cuts[position]
        return tuple(zip(starts, lengths, strict=True))

    def normal(self, layout: Layout, shape: Sequence[int]) -> Layout:
        """The same layout of a tensor of that shape with the smallest units.

        Raises:
          ValueError: cuts do not fall on whole units.
        """
        lengths: list[set[int]] = [{length} for length in shape]
        entries = []
        for axis, sbp in zip(self.axes, layout, strict=True):
            if sbp.is_split:
                before = lengths[sbp.dim]
                lengths[sbp.dim] = axis.lengths(before, sbp.unit)
                sbp = axis.normal(sbp, *sorted(before))
            entries.append(sbp)
        return tuple(entries)

    def local_shape(self, shape: Sequence[int], layout: Layout, part: int) -> Shape:
        """The shape of the piece that a part holds."""
        return tuple(length for _, length in self.pieces(shape, layout, part))

    def text(self) -> str:
        """`data:4` for one axis, `data:2 x model:2` for two, shares as `data:2[3,1]`, axes of time as `micro~4`."""
        return " x ".join(
            f"{axis.name}{'~' if axis.time else ':'}{axis.size}"
            + (f"[{','.join(map(str, axis.shares))}]" if axis.shares else "")
            for axis in self.axes
        )


@functools.lru_cache(maxsize=256)
def _places(mesh: Mesh) -> tuple[int, ...]:
    """For each part its place among the devices."""
    space = mesh.in_space
    return tuple(space.number(mesh.without_time(mesh.coordinate(part))) for part in range(mesh.size))


@functools.lru_cache(maxsize=256)
def _groups(mesh: Mesh, axis: int) -> tuple[tuple[int, ...], ...]:
    """For each part its group along an axis."""
    around = [mesh.coordinate(part) for part in range(mesh.size)]
    around = [(*place[:axis], *place[axis + 1 :]) for place in around]
    return tuple(tuple(other for other in range(mesh.size) if around[other] == place) for place in around)
