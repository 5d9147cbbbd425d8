"""Boxing between the devices of one process: plain ops, and whole values kept once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from whaleish.boxing.boxer import Boxer, Group
from whaleish.boxing.route import Exchange
from whaleish.boxing.transfer import Transfer
from whaleish.sbp import P, Sbp
from whaleish.writer import FunctionWriter, Ref

_EXTREMES = {"Pmax": "Maximum", "Pmin": "Minimum"}


class LocalBoxer(Boxer):
    """A tensor that a group holds whole is made on the device of its first part, where the others read it."""

    def inside(self, writer: FunctionWriter, region: int, bring: Callable[[Ref], Ref]) -> LocalBoxer:
        return LocalBoxer(writer, self.mesh, self.parts, self.devices)

    def whole(self, group: Group, refs: list[Ref], source: Sbp, depth: int) -> list[Ref]:
        first = self.device(group, 0)
        if group.axis.time and source.kind == "P":
            return [self._in_turn(group, refs, first)] * len(refs)
        made = self.join(refs, source.dim, first) if source.is_split else self.reduce(refs, source, first)
        return [made] * len(refs)

    def scatter(self, group: Group, refs: list[Ref], source: Sbp, target: Sbp, depth: int) -> list[Ref]:
        made = []
        for k, position in enumerate(group.positions):
            pieces = group.pieces(target, position)
            slices = [self.slice(ref, pieces, self.device(group, other)) for other, ref in enumerate(refs)]
            made.append(self.reduce(slices, source, self.device(group, k)))
        return made

    def exchange(self, refs: list[Ref], exchange: Exchange) -> list[Ref]:
        made: list[Ref] = []
        seen: dict[object, Ref] = {}  # parts that want the same of the same are given it once
        place = {part: k for k, part in enumerate(self.parts)}
        for part, device in zip(self.parts, self.devices, strict=True):
            pieces = {other: exchange.block(other, part) for other in exchange.senders(part)}
            key = tuple((refs[place[other]], *block) for other, block in pieces.items())
            if key not in seen:
                blocks = {
                    other: self.slice(refs[place[other]], block, self.devices[place[other]])
                    for other, block in pieces.items()
                }
                seen[key] = self.assemble(exchange, part, blocks, device)
            made.append(seen[key])
        return made

    def transfer(self, refs: list[Ref], transfer: Transfer, names: Sequence[str]) -> list[Ref]:
        """A tensor on other devices of this process: its parts there, from those of `transfer.mesh`.

        Args:
          names: TensorFlow's names of all devices, by number.
        """
        mesh, after = transfer.mesh, transfer.after
        landed = []
        for receiver, number in enumerate(after.devices):
            blocks = {
                sender: self.slice(refs[sender], transfer.arrival.block(sender, receiver), names[mesh.devices[sender]])
                for senders in transfer.senders(receiver)
                for sender in senders
            }
            landed.append(self.land(transfer, receiver, blocks, names[number]))
        there = LocalBoxer(self.writer, after, range(after.size), [names[number] for number in after.devices])
        return there.box(landed, transfer.landing, transfer.target, transfer.shape, 0)

    def _in_turn(self, group: Group, refs: list[Ref], device: str) -> Ref:
        """The sum of what comes one after another; each summand can go when it has been added."""
        dtype = self.writer.dtypes[refs[0]]
        total = self.wide(refs[0], device)
        self.turns.end(0, total)
        for turn, ref in enumerate(refs[1:], 1):
            total = self.reduce([total, self.wide(ref, device)], P, device)
            self.turns.end(turn, total)
        return self.cast(total, dtype, device)

    def reduce(self, refs: list[Ref], source: Sbp, device: str) -> Ref:
        """What summands in a partial layout make up."""
        if source.kind == "P" and self.writer.dtypes[refs[0]] != "bool":
            return self.add_up(refs, device)
        result = refs[0]
        for ref in refs[1:]:
            (result,) = self.writer.add(_EXTREMES[source.kind], [result, ref], device=device)
        return result
