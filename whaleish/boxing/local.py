"""Boxing between the devices of one process: plain ops, and whole values kept once."""

from __future__ import annotations

from collections.abc import Callable

from whaleish.boxing.boxer import Boxer, overlap
from whaleish.sbp import Layout, Sbp
from whaleish.writer import FunctionWriter, Ref

_EXTREMES = {"Pmax": "Maximum", "Pmin": "Minimum"}


class LocalBoxer(Boxer):
    """A whole tensor is made on the first device, where the others read it."""

    def inside(self, writer: FunctionWriter, region: int, bring: Callable[[Ref], Ref]) -> LocalBoxer:
        return LocalBoxer(writer, self.mesh, self.parts, self.devices)

    def whole(self, refs: list[Ref], source: Sbp, shape: tuple[int, ...], depth: int) -> list[Ref]:
        first = self.devices[0]
        if source.is_split:
            return [self._join(refs, source.dim, first)] * len(refs)
        return [self._reduce(refs, source, first)] * len(refs)

    def scatter(self, refs: list[Ref], source: Sbp, target: Layout, shape: tuple[int, ...], depth: int) -> list[Ref]:
        made = []
        for position, device in enumerate(self.devices):
            pieces = self.mesh.pieces(shape, target, self.parts[position])
            slices = [self.slice(ref, pieces, at) for ref, at in zip(refs, self.devices, strict=True)]
            made.append(self._reduce(slices, source, device))
        return made

    def exchange(
        self, refs: list[Ref], source: Layout, target: Layout, shape: tuple[int, ...], depth: int
    ) -> list[Ref]:
        made = []
        held = [self.mesh.pieces(shape, source, part) for part in self.parts]
        for part, device in zip(self.parts, self.devices, strict=True):
            wanted = self.mesh.pieces(shape, target, part)
            blocks = [overlap(wanted, h) for h in held]
            slices = [self.slice(r, b, at) for r, b, at in zip(refs, blocks, self.devices, strict=True)]
            made.append(self._join(slices, source[0].dim, device))
        return made

    def _join(self, refs: list[Ref], dim: int, device: str) -> Ref:
        if len(refs) == 1:
            return refs[0]
        axis = self.writer.const(dim, "int32", device)
        return self.writer.add("ConcatV2", [*refs, axis], device=device)[0]

    def _reduce(self, refs: list[Ref], source: Sbp, device: str) -> Ref:
        if source.kind == "P" and self.writer.dtypes[refs[0]] != "bool":
            return self.writer.add("AddN", refs, device=device)[0]
        result = refs[0]
        for ref in refs[1:]:
            (result,) = self.writer.add(_EXTREMES[source.kind], [result, ref], device=device)
        return result
