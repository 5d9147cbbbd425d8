"""Boxing where one process holds parts of several times: between times it moves nothing, at each time as ever."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from whaleish.boxing.boxer import Boxer, Boxing, Group
from whaleish.boxing.horovod import HorovodBoxer
from whaleish.boxing.local import LocalBoxer
from whaleish.boxing.route import Exchange
from whaleish.mesh import Mesh
from whaleish.sbp import Layout, Sbp
from whaleish.writer import FunctionWriter, Ref


class TimedBoxer(Boxer):
    """The micro-batches of one process.

    Args:
      at: for each of the process's parts, in order, the boxer that reaches the parts of other processes.
    """

    def __init__(self, writer: FunctionWriter, mesh: Mesh, at: Sequence[HorovodBoxer]) -> None:
        super().__init__(writer, mesh, [b.parts[0] for b in at], [b.devices[0] for b in at])
        self.at, self.gate = tuple(at), at[0].gate
        self._own = LocalBoxer(writer, mesh, self.parts, self.devices)
        self._own.turns = self.turns

    def whole(self, group: Group, refs: list[Ref], source: Sbp, depth: int) -> list[Ref]:
        return self._at(group).whole(self._there(group), refs, source, depth)

    def scatter(self, group: Group, refs: list[Ref], source: Sbp, target: Sbp, depth: int) -> list[Ref]:
        return self._at(group).scatter(self._there(group), refs, source, target, depth)

    def exchange(self, refs: list[Ref], exchange: Exchange) -> list[Ref]:
        if exchange.axis is not None and self.mesh.axes[exchange.axis].time:
            return self._own.exchange(refs, exchange)
        return [made for boxer, ref in zip(self.at, refs, strict=True) for made in boxer.exchange([ref], exchange)]

    def arrange(self, refs: list[Ref], flat: Sbp, target: Layout, shape: tuple[int, ...]) -> list[Ref]:
        """What arrives is the same at all times."""
        here = self.mesh.place(self.parts[0])
        space = self.at[0].placed(self.mesh.in_space, here)
        return space.arrange(refs[:1], flat, self.mesh.without_time(target), shape) * len(self.parts)

    def gather_rows(self, ids: Boxing, rows: Boxing, depth: int) -> tuple[list[Ref], list[Ref]]:
        """First the rows of all times, which then travel together."""
        if any(sbp.is_split for axis, sbp in zip(self.mesh.axes, ids.target, strict=True) if axis.time):
            return super().gather_rows(ids, rows, depth)
        gathered, values = self.at[0].gather_rows(self._at_once(ids, depth), self._at_once(rows, depth), depth)
        return gathered * len(self.parts), values * len(self.parts)

    def inside(self, writer: FunctionWriter, region: int, bring: Callable[[Ref], Ref]) -> TimedBoxer:
        return TimedBoxer(writer, self.mesh, [boxer.inside(writer, region, bring) for boxer in self.at])

    def finish(self) -> list[str]:
        return [name for boxer in self.at for name in boxer.finish()]

    def _at_once(self, boxing: Boxing, depth: int) -> Boxing:
        """What is left to be done when a tensor is boxed in time, by a single part."""
        entries = zip(self.mesh.axes, boxing.source, boxing.target, strict=True)
        between = tuple(after if axis.time else before for axis, before, after in entries)
        refs = self.box(boxing.refs, boxing.source, between, boxing.shape, depth)
        return boxing._replace(refs=refs[:1], source=between)

    def _at(self, group: Group) -> Boxer:
        return self._own if group.axis.time else self.at[group.places[0]]

    def _there(self, group: Group) -> Group:
        """A group along devices as the boxer of its time sees it: that holds a single part."""
        return group if group.axis.time else replace(group, places=(0,))
