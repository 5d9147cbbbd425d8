"""Transfers: a tensor that lies on some devices goes to others, in a layout of its own there.

It is one exchange, in which each receiver fetches its piece from the devices that have it, and adds up summands; and
then what remains on the receivers' mesh. With p1 producers and p2 consumers of T bytes that sends what table 2 of the
OneFlow paper (Yuan et al., 2021) lists for disjoint devices: T to a split, p2 T to copies, p1 T from summands, and
(p1 + p2 - 1) T from summands to copies.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from math import prod

from whaleish.boxing.route import Exchange, route_volume
from whaleish.mesh import Mesh
from whaleish.sbp import B, Layout, S


@dataclass(frozen=True)
class Transfer:
    """A tensor's way from one mesh to another; devices may be in both.

    Attributes:
      mesh, source: where and how it lies. after, target: where and how it is wanted.
      shape: of the logical tensor.
    """

    mesh: Mesh
    source: Layout
    after: Mesh
    target: Layout
    shape: tuple[int, ...]

    @property
    def landing(self) -> Layout:
        """The layout in which it arrives; what is left the receivers do among themselves.

        What is to be summands arrives in pieces; so does what is made of summands and is to be whole.
        """
        whole = S(0) if self.shape else B
        summed = any(sbp.is_partial for sbp in self.source)
        return tuple(whole if sbp.is_partial or (summed and sbp.is_broadcast) else sbp for sbp in self.target)

    def senders(self, receiver: int) -> list[list[int]]:
        """For each summand the parts of `mesh` that together hold it once, for a part of `after`.

        Of copies one is asked, another by each receiver.
        """
        axes = list(zip(self.mesh.axes, self.source, strict=True))
        summands = itertools.product(*(range(axis.size) if sbp.is_partial else (0,) for axis, sbp in axes))
        found = []
        for place in summands:
            choices = [
                range(axis.size) if sbp.is_split else (receiver % axis.size,) if sbp.is_broadcast else (position,)
                for (axis, sbp), position in zip(axes, place, strict=True)
            ]
            found.append([self.mesh.number(coordinate) for coordinate in itertools.product(*choices)])
        return found

    @property
    def arrival(self) -> Exchange:
        """What goes from part to part, as the exchange by which it arrives."""
        return Exchange(self.mesh, self.source, self.after, self.landing, self.shape)

    def volume(self, nbytes: float) -> float:
        """Bytes that all devices send together, of a logical tensor of `nbytes`."""
        total = prod(self.shape)
        sent = 0
        for receiver, sender in self.pairs():
            if self.after.devices[receiver] != self.mesh.devices[sender]:
                sent += prod(length for _, length in self.arrival.block(sender, receiver))
        arrived = sent / total * nbytes if total else 0.0
        return arrived + route_volume(self.after, self.landing, self.target, self.shape, nbytes)

    def pairs(self) -> list[tuple[int, int]]:
        """(part of `after`, part of `mesh`) between which something goes."""
        return [
            (receiver, sender)
            for receiver in range(self.after.size)
            for senders in self.senders(receiver)
            for sender in senders
        ]

    @property
    def devices(self) -> tuple[int, ...]:
        """All devices that take part, in ascending order."""
        return tuple(sorted({*self.mesh.devices, *self.after.devices}))
