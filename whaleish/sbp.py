"""SBP: how one mesh axis holds a tensor, as split, broadcast or partial parts."""

from __future__ import annotations

import re
from typing import NamedTuple


class Sbp(NamedTuple):
    """The layout of a tensor over one mesh axis.

    Attributes:
      kind: "S" (split), "B" (broadcast), "P" (partial sum), "Pmax" or "Pmin"; or "L" (local): each part has a value
        of its own, as under `local_statistics()`, and the whole is their mean.
      dim: the tensor dim that is split; -1 unless the kind is "S".
      unit: cuts fall on multiples of this many elements along `dim` (1 unless a reshape scaled them):
        flattening a [5, 3] tensor that is split 3 + 2 gives [15] split 9 + 6, that is `S(0, unit=3)`.

    The name, and the kinds S, B and P, follow OneFlow (Yuan et al., 2021, arXiv:2110.15032); units and L are not in it.
    """

    kind: str
    dim: int = -1
    unit: int = 1

    @property
    def is_split(self) -> bool:
        return self.kind == "S"

    @property
    def is_broadcast(self) -> bool:
        return self.kind == "B"

    @property
    def is_partial(self) -> bool:
        return self.kind[0] == "P"

    @property
    def is_local(self) -> bool:
        return self.kind == "L"

    def __str__(self) -> str:
        if self.kind != "S":
            return self.kind
        return f"S({self.dim})" if self.unit == 1 else f"S({self.dim}:{self.unit})"

    def __repr__(self) -> str:
        return str(self)


Layout = tuple[Sbp, ...]
"""One `Sbp` per mesh axis, applied outer to inner."""

B = Sbp("B")
P = Sbp("P")
PMAX = Sbp("Pmax")
PMIN = Sbp("Pmin")
L = Sbp("L")

_SPLITS = tuple(Sbp("S", dim) for dim in range(12))
_PATTERN = re.compile(r"S\((\d+)(?::(\d+))?\)|B|Pmax|Pmin|P|L")


def S(dim: int, unit: int = 1) -> Sbp:
    """Split along `dim`, cut on multiples of `unit` elements."""
    if dim < 0 or unit < 1:
        raise ValueError(f"S({dim}, unit={unit}): the dim must be 0 or more and the unit 1 or more")
    return _SPLITS[dim] if unit == 1 and dim < len(_SPLITS) else Sbp("S", dim, unit)


def parse_sbp(text: str) -> Sbp:
    """The inverse of `str(sbp)`."""
    match = _PATTERN.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a layout of one axis; write S(dim), S(dim:unit), B, P, Pmax, Pmin or L")
    if text.strip().startswith("S"):
        return S(int(match[1]), int(match[2] or 1))
    return Sbp(match[0])


def parse_layout(text: str) -> Layout:
    """Parses `"S(0),B"`: one entry per mesh axis, outer to inner."""
    return tuple(parse_sbp(part) for part in text.split(","))


def format_layout(layout: Layout) -> str:
    """The inverse of `parse_layout`."""
    return ",".join(map(str, layout))


def is_whole(*layouts: Layout) -> bool:
    """Whether all of these layouts are B on every axis."""
    return all(sbp.is_broadcast for layout in layouts for sbp in layout)


def dual(sbp: Sbp) -> Sbp:
    """The layout that the gradient of a tensor has when the tensor has layout `sbp`.

    A split tensor has a split gradient. The gradient of a broadcast tensor is the sum over the parts that read it, so
    it arrives partial; the parts of a partial sum all receive the whole gradient.
    """
    return {"B": P, "P": B, "L": P}.get(sbp.kind, sbp)
