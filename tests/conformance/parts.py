"""Cuts whole values into the parts that a layout says, and joins parts again."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from whaleish.mesh import Axis
from whaleish.sbp import Layout


def cut(value: np.ndarray, layout: Layout, axes: Sequence[Axis], rng: np.random.Generator) -> list[np.ndarray]:
    """The parts of a value, the last axis fastest. Summands (and what a max or min takes in) are random."""
    if not axes:
        return [value]
    sbp, axis = layout[0], axes[0]
    if sbp.is_broadcast:
        return cut(value, layout[1:], axes[1:], rng) * axis.size
    if sbp.is_split:
        pieces = np.split(value, axis.cuts(value.shape[sbp.dim], sbp.unit)[1:-1], sbp.dim)
    else:
        pieces = _summands(value, sbp.kind, axis.size, rng)
    return [part for piece in pieces for part in cut(piece, layout[1:], axes[1:], rng)]


def _summands(value: np.ndarray, kind: str, count: int, rng: np.random.Generator) -> list[np.ndarray]:
    def noise() -> np.ndarray:
        if value.dtype.kind in "iu":
            return rng.integers(0, 4, value.shape).astype(value.dtype)
        if value.dtype.kind == "b":
            raise ValueError("a bool tensor cannot be partial")
        return np.asarray(rng.uniform(0.1, 2.0, value.shape)).astype(value.dtype)

    if kind == "P":
        parts = [noise() * rng.choice([-1, 1]).astype(value.dtype) for _ in range(count - 1)]
        return [*parts, (value - sum(parts)).astype(value.dtype)] if parts else [value]
    owner = rng.integers(0, count, value.shape)

    def candidate() -> np.ndarray:
        """No better than the value; at the end of an integer's range nothing is worse."""
        worse = value - noise() if kind == "Pmax" else value + noise()
        wrapped = worse > value if kind == "Pmax" else worse < value
        return np.where(wrapped, value, worse)

    return [np.where(owner == k, value, candidate()).astype(value.dtype) for k in range(count)]


class Unequal(AssertionError):
    """Parts that were declared B differ."""


def join(parts: Sequence[np.ndarray], layout: Layout, axes: Sequence[Axis]) -> np.ndarray:
    """The inverse of `cut`; raises `Unequal` where parts of a B layout differ."""
    if not axes:
        return parts[0]
    inner = len(parts) // axes[0].size
    pieces = [join(parts[k * inner : (k + 1) * inner], layout[1:], axes[1:]) for k in range(axes[0].size)]
    kind = layout[0].kind
    if kind == "S":
        return np.concatenate(pieces, layout[0].dim)
    if kind == "B":
        for k, piece in enumerate(pieces):
            if piece.shape != pieces[0].shape or not _equal(piece, pieces[0]):
                raise Unequal(f"part {k} of a B tensor is {piece!r}, part 0 is {pieces[0]!r}")
        return pieces[0]
    if kind == "P":
        return sum(pieces[1:], pieces[0]).astype(pieces[0].dtype)
    combine = np.maximum if kind == "Pmax" else np.minimum
    return combine.reduce(pieces)


def _equal(a: np.ndarray, b: np.ndarray) -> bool:
    if a.dtype.kind in "fc" or a.dtype.name == "bfloat16":
        # The same kernel on the same values, but threads may add in another order.
        return np.allclose(a.astype(np.complex128), b.astype(np.complex128), 1e-12, 1e-12, equal_nan=True)
    return np.array_equal(a, b)
