"""What this process needs of a checkpoint's files, and reading it with all checksums."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow as tf

from whaleish.checkpoint import objects as objects_
from whaleish.checkpoint.errors import CheckpointError
from whaleish.checkpoint.matching import Pair
from whaleish.checkpoint.slices import spec

BATCH_BYTES = 256 << 20
"""So much is read by one op: TensorFlow reads its tensors at the same time, and holds whole stored slices meanwhile."""

LISTED = 1000
"""So many variables are listed of each thing that does not fit."""


@dataclass(frozen=True)
class Read:
    """What is to be read for a variable: the whole (`part` None), or the piece of a part."""

    pair: Pair
    part: int | None
    spec: str
    elements: int

    @property
    def bytes(self) -> int:
        return self.elements * max(1, self.pair.value.variable.dtype.size)


def reads(pair: Pair) -> Iterator[Read]:
    """What this process needs of a variable."""
    variable = pair.value.laid_out
    parts = variable.parts if variable is not None else None
    if parts is not None and not parts.numbers:
        return
    pieces = parts is not None and variable.on_several_ranks and variable.dtype in objects_.DIVISIBLE
    if not pieces or not any(sbp.is_split for sbp in parts.layout) or any(sbp.is_partial for sbp in parts.layout):
        yield Read(pair, None, "", math.prod(pair.shape))
        return
    for part, _ in parts.distinct():
        bounds = parts.mesh.pieces(pair.shape, parts.layout, part)
        elements = math.prod(length for _, length in bounds)
        if elements:
            yield Read(pair, part, spec(pair.shape, bounds), elements)


def read(prefix: Path, wanted: Sequence[Read]) -> list[tuple[Read, tf.Tensor]]:
    """Reads, with all checksums; a failure names every variable that cannot be read."""
    found: list[tuple[Read, tf.Tensor]] = []
    failures = []
    for batch in _batches(wanted):
        try:
            found += zip(batch, _restore(prefix, batch), strict=True)
        except tf.errors.OpError:
            for one in batch:
                try:
                    _restore(prefix, [one])
                except tf.errors.OpError as error:
                    failures.append(f"{one.pair.name}: {plain(error)}")
    if failures:
        raise CheckpointError(f"{prefix} is damaged:\n" + lines(failures))
    return found


def unreadable(prefix: Path, reader: Any, values: Sequence[objects_.Value]) -> list[str]:
    """Of variables that a checkpoint has under the keys that they would have in it, those that cannot be read."""
    shapes, dtypes = reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()
    failures = []
    for value in values:
        variable = value.variable
        known = variable is not None and shapes.get(value.key) == variable.shape and variable.shape.is_fully_defined()
        if known and dtypes[value.key] == variable.dtype:  # of others TensorFlow might believe what is damaged
            try:
                _restore(prefix, [Read(Pair(value, value.key, value.key, tuple(variable.shape)), None, "", 0)])
            except tf.errors.OpError as error:
                failures.append(f"{value.key}: {plain(error)}")
    return failures


def _restore(prefix: Path, batch: Sequence[Read]) -> list[tf.Tensor]:
    with tf.device("/device:CPU:0"):
        return tf.raw_ops.RestoreV2(
            prefix=str(prefix),
            tensor_names=[one.pair.key for one in batch],
            shape_and_slices=[one.spec for one in batch],
            dtypes=[one.pair.value.variable.dtype for one in batch],
        )


def _batches(wanted: Sequence[Read]) -> Iterator[list[Read]]:
    batch: list[Read] = []
    for one in wanted:
        if batch and sum(read.bytes for read in batch) + one.bytes > BATCH_BYTES:
            yield batch
            batch = []
        batch.append(one)
    if batch:
        yield batch


def lines(names: Sequence[str]) -> str:
    """A list for people."""
    more = [f"and {len(names) - LISTED} more"] if len(names) > LISTED else []
    return "\n".join(f"  {name}" for name in [*names[:LISTED], *more])


def plain(error: BaseException) -> str:
    """TensorFlow's message without what it says of its own op."""
    text = getattr(error, "message", None) or str(error)
    return re.sub(r"\{\{.*?\}\} | \[Op:\w+\]", "", text)
