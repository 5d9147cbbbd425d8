"""Boxing where one process holds parts of several times: between times it moves nothing, at each time as ever."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from whaleish.boxing.boxer import Boxer, Group
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

    def gather_rows(
        self,
        rows: Sequence[list[Ref]],
        sources: Sequence[Layout],
        targets: Sequence[Layout],
        shapes: Sequence[tuple[int, ...]],
        depth: int,
    ) -> list[list[Ref]]:
        """First the rows of all times, which then travel together."""
        if any(sbp.is_split for axis, sbp in zip(self.mesh.axes, targets[0], strict=True) if axis.time):
            return super().gather_rows(rows, sources, targets, shapes, depth)
        gathered = [self._at_once(source, target) for source, target in zip(sources, targets, strict=True)]
        each = zip(rows, sources, gathered, shapes, strict=True)
        held = [self.box(refs, source, target, shape, depth)[:1] for refs, source, target, shape in each]
        made = self.at[0].gather_rows(held, gathered, targets, shapes, depth)
        return [refs * len(self.parts) for refs in made]

    def inside(self, writer: FunctionWriter, region: int, bring: Callable[[Ref], Ref]) -> TimedBoxer:
        return TimedBoxer(writer, self.mesh, [boxer.inside(writer, region, bring) for boxer in self.at])

    def finish(self) -> list[str]:
        return [name for boxer in self.at for name in boxer.finish()]

    def _at_once(self, source: Layout, target: Layout) -> Layout:
        """The target's entries for time, the source's for devices."""
        entries = zip(self.mesh.axes, source, target, strict=True)
        return tuple(after if axis.time else before for axis, before, after in entries)

    def _at(self, group: Group) -> Boxer:
        return self._own if group.axis.time else self.at[group.places[0]]

    def _there(self, group: Group) -> Group:
        """A group along devices as the boxer of its time sees it: that holds a single part."""
        return group if group.axis.time else replace(group, places=(0,))
