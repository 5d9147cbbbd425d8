"""The arguments of one call of a step: what is whole, and what is this process's part."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from whaleish.capture import Signature, take_apart
from whaleish.dataset import LocalPart
from whaleish.meeting import DisagreementError, all_gather
from whaleish.mesh import Axis
from whaleish.numbers import number_of
from whaleish.sbp import B, Layout, S
from whaleish.world import World


@dataclass(frozen=True)
class Call:
    """A call, taken apart.

    Attributes:
      signature: with the shapes of whole batches.
      values: the flat tensors, each as it was given: whole, or this process's rows.
      layouts: how each of them arrives.
      batch: a hash of the whole batches whose parts these are.
    """

    signature: Signature
    values: list[Any]
    layouts: tuple[Layout, ...]
    batch: int

    @property
    def key(self) -> Any:
        """Equal for calls that may share a program."""
        return self.signature.key, self.layouts

    def text(self) -> str:
        """One argument a line, for comparing ranks."""
        lines = [
            f"{spec.name or f'argument {place}'}: {spec.dtype.name}{spec.shape.as_list()} {layout[0]}"
            for place, (spec, layout) in enumerate(zip(self.signature.specs, self.layouts, strict=True))
        ]
        return "\n".join([*lines, f"{len(lines)} tensors", f"Python values: {self.signature.python_values()}"])


def take_call(args: Sequence[Any], kwargs: Mapping[str, Any], inputs: str, world: World) -> Call:
    """Takes a call apart.

    Args:
      inputs: "local" if every array with dims is this process's part of the batch, else "global".

    Raises:
      ValueError: the parts are not those that an even division of the batch gives.
    """
    if inputs == "local" and world.distributed and world.size > 1:
        args, kwargs = _as_parts(args, kwargs, world)
    leaves = tf.nest.flatten((args, kwargs))
    parts = [leaf for leaf in leaves if isinstance(leaf, LocalPart)]
    if not parts:
        signature, flat = take_apart(args, kwargs)
        return Call(signature, flat, ((B,),) * len(flat), 0)
    whole = tf.nest.map_structure(_whole_spec, (args, kwargs))
    signature, flat = take_apart(*whole)
    rows = iter(parts)
    values, layouts = [], []
    for value in flat:
        mine = isinstance(value, _PartSpec)
        values.append(next(rows).tensor if mine else value)
        layouts.append((S(0),) if mine else (B,))
    # In order, and not as a sum: equal tensors, as the input and the target of an autoencoder, must not cancel.
    batch = number_of(repr([part.fingerprint for part in parts]))
    return Call(signature, values, tuple(layouts), batch)


class _PartSpec(tf.TensorSpec):
    """Stands for a `LocalPart` while the rest of the call is taken apart."""


def _whole_spec(leaf: Any) -> Any:
    return _PartSpec(leaf.global_shape, leaf.tensor.dtype) if isinstance(leaf, LocalPart) else leaf


def _as_parts(args: Sequence[Any], kwargs: Mapping[str, Any], world: World) -> Any:
    """Marks every array with dims as this process's rows; the ranks exchange how many they have."""
    structure = (tuple(args), dict(kwargs))
    leaves = [tf.convert_to_tensor(leaf) if _has_rows(leaf) else leaf for leaf in tf.nest.flatten(structure)]
    mine = [leaf.shape[0] for leaf in leaves if _has_rows(leaf)]
    columns = zip(*_rows_of_ranks(mine), strict=True)
    marked = [_mark(leaf, list(next(columns)), world) if _has_rows(leaf) else leaf for leaf in leaves]
    return tf.nest.pack_sequence_as(structure, marked)


def _rows_of_ranks(mine: list[int]) -> list[list[int]]:
    """For each rank, how many rows each of its arrays has. What is sent begins with how many numbers follow."""
    sent = iter(all_gather("whaleish_rows", tf.constant([len(mine), *mine], tf.int64)).numpy().tolist())
    counts = [list(itertools.islice(sent, length)) for length in sent]
    if len({len(rows) for rows in counts}) > 1:
        raise DisagreementError(
            f"inputs='local': the ranks passed {[len(rows) for rows in counts]} arrays; all must pass the same ones"
        )
    return counts


def _has_rows(leaf: Any) -> bool:
    return isinstance(leaf, tf.Tensor | np.ndarray) and len(leaf.shape) > 0


def _mark(rows: tf.Tensor, counts: list[int], world: World) -> LocalPart:
    cuts = Axis("d", world.size).cuts(sum(counts))
    if [b - a for a, b in itertools.pairwise(cuts)] != counts:
        raise ValueError(
            f"inputs='local': the ranks passed {counts} rows. The rows of {world.size} ranks may differ by one, the "
            "first ranks having more; divide the batch so, or pass whole batches with inputs='global'"
        )
    return LocalPart(rows, (sum(counts), *rows.shape[1:]), cuts[world.rank], 0)
