"""Which slice of each tensor is stored by which rank, and how TensorFlow writes a slice down."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

Bounds = tuple[tuple[int, int], ...]
"""(start, length) along each dim of a logical tensor."""

SLICE_BYTES = 64 << 20
"""Longer pieces are stored in several slices: TensorFlow reads a stored slice, and checks its sum, only as a whole."""

SHARED_BYTES = 1 << 20
"""What several ranks hold alike is divided between them if it comes to so much for each."""

_ALIGNED = 64  # bytes: rows that begin at a multiple of it can be stored without a copy


@dataclass(frozen=True)
class Piece:
    """A range of a logical tensor, and the ranks that hold it."""

    bounds: Bounds
    holders: tuple[int, ...]


@dataclass(frozen=True)
class Held:
    """A logical tensor that ranks hold in pieces.

    Attributes:
      shape: None where TensorFlow alone knows; then there is one piece, of which the bounds are not used.
      itemsize: bytes of an element.
      pieces: make up the tensor, each element once.
      divisible: whether it may be stored in slices.
    """

    shape: tuple[int, ...] | None
    itemsize: int
    pieces: tuple[Piece, ...]
    divisible: bool = True


@dataclass(frozen=True)
class Slice:
    """What one rank stores of a tensor, in one: of its piece number `piece` the range `bounds`, of the logical tensor.

    `bounds` is None where that is all of the tensor.
    """

    tensor: int
    piece: int
    bounds: Bounds | None


def deal(tensors: Sequence[Held], ranks: int) -> list[list[Slice]]:
    """For each rank what it stores; every element of every tensor once.

    What only one rank holds is stored there. What several hold goes, slice by slice, to the one that has least so far.
    """
    dealt: list[list[Slice]] = [[] for _ in range(ranks)]
    load = [0] * ranks
    for index, tensor in enumerate(tensors):
        if tensor.shape is None or not math.prod(tensor.shape):
            dealt[tensor.pieces[0].holders[0]].append(Slice(index, 0, None))
            continue
        for number, piece in enumerate(tensor.pieces):
            for bounds in _slices(piece, tensor.itemsize) if tensor.divisible else [piece.bounds]:
                whole = all(length == size for (_, length), size in zip(bounds, tensor.shape, strict=True))
                rank = min(piece.holders, key=lambda one: (load[one], one))
                load[rank] += _elements(bounds) * tensor.itemsize
                dealt[rank].append(Slice(index, number, None if whole else bounds))
    return dealt


def _slices(piece: Piece, itemsize: int) -> Iterator[Bounds]:
    """The piece in ranges of rows; none if it has no elements."""
    if not piece.bounds:
        yield ()
        return
    (first, rows), *rest = piece.bounds
    row = _elements(tuple(rest)) * itemsize
    if not row * rows:
        return
    each = max(1, SLICE_BYTES // row)
    if row * rows >= SHARED_BYTES * len(piece.holders):
        each = min(each, -(-rows // len(piece.holders)))
    step = _ALIGNED // math.gcd(_ALIGNED, row)
    each = -(-each // step) * step
    for start in range(0, rows, each):
        yield ((first + start, min(each, rows - start)), *rest)


def _elements(bounds: Bounds) -> int:
    return math.prod(length for _, length in bounds)


def spec(shape: Sequence[int], bounds: Bounds | None) -> str:
    """As SaveV2 and RestoreV2 take it: `"512 100000 0,128:-"`; `""` for a whole tensor."""
    if bounds is None or all(length == size for (_, length), size in zip(bounds, shape, strict=True)):
        return ""
    ranges = (
        "-" if length == size else f"{start},{length}" for (start, length), size in zip(bounds, shape, strict=True)
    )
    return f"{' '.join(map(str, shape))} {':'.join(ranges)}"


def within(bounds: Bounds, piece: Bounds) -> Bounds:
    """A range of a logical tensor as one of the piece that it is part of."""
    return tuple((start - first, length) for (start, length), (first, _) in zip(bounds, piece, strict=True))
