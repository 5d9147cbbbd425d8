"""This process's part of a dataset of global batches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from whaleish import world as world_
from whaleish.mesh import Axis


@dataclass(frozen=True, eq=False)
class LocalPart:
    """A tensor of which this process has only its rows; a leaf to `tf.nest`.

    Attributes:
      tensor: the rows of this process, maybe none.
      global_shape: the shape of the whole batch.
      start: which row of the whole batch the first one here is.
      fingerprint: a 64-bit hash of the whole batch, to find ranks that read other batches.
    """

    tensor: tf.Tensor
    global_shape: tuple[int, ...]
    start: int
    fingerprint: int

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        raise self._not_a_tensor()

    def __tf_tensor__(self, dtype: Any = None, name: Any = None) -> Any:
        raise self._not_a_tensor()

    def _not_a_tensor(self) -> TypeError:
        return TypeError(
            f"this is a process's own part ({self.tensor.shape[0]} rows) of a batch of shape {self.global_shape}, from "
            "wh.distribute_dataset. Give it to a wh.function step, which knows that; its own rows are in `.tensor`"
        )


class DistributedDataset:
    """Iterates over a `tf.data.Dataset` of global batches, giving `LocalPart`s.

    Attributes:
      dataset: the dataset of global batches.
      axis: how the rows of a batch are divided; `position`: which part is this process's.
    """

    def __init__(self, dataset: tf.data.Dataset, axis: Axis, position: int) -> None:
        self.dataset, self.axis, self.position = dataset, axis, position
        for spec in tf.nest.flatten(dataset.element_spec):
            if not isinstance(spec, tf.TensorSpec):
                raise TypeError(
                    f"distribute_dataset divides dense tensors, and an element of this dataset has a {spec}; "
                    "make it dense (to_tensor, sparse.to_dense) with dataset.map before batching"
                )
        self._parts = dataset.map(self._cut, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
        self._parts = self._parts.prefetch(tf.data.AUTOTUNE)

    @property
    def element_spec(self) -> Any:
        """That of the global batches."""
        return self.dataset.element_spec

    def cardinality(self) -> tf.Tensor:
        """The number of global batches, as `tf.data.Dataset.cardinality` gives it."""
        return self.dataset.cardinality()

    def __len__(self) -> int:
        return len(self.dataset)

    def __iter__(self) -> Iterator[Any]:
        if not tf.executing_eagerly():
            raise RuntimeError("a distributed dataset is iterated outside tf.function and wh.function, batch by batch")
        for cut in self._parts:
            leaves = [_leaf(*values) for values in cut]
            yield tf.nest.pack_sequence_as(self.dataset.element_spec, leaves)

    def _cut(self, *element: Any) -> tuple:
        """For each tensor of an element: its own rows, the shape of the whole, the first row, the hash."""
        flat = tf.nest.flatten(element)
        batched = [tensor for tensor in flat if tensor.shape.rank != 0]
        if not batched:
            return tuple((tensor,) for tensor in flat)
        rows = tf.shape(batched[0], tf.int64)[0]
        checks = [
            tf.debugging.assert_equal(
                tf.shape(tensor, tf.int64)[0],
                rows,
                "the tensors of one element of a distributed dataset must have the same number of rows",
            )
            for tensor in batched[1:]
        ]
        with tf.control_dependencies(checks):
            cuts = _cuts(self.axis, rows)
        start, stop = cuts[self.position], cuts[self.position + 1]
        return tuple(
            (tensor[start:stop], tf.shape(tensor, tf.int64), start, _hash(tensor))
            if tensor.shape.rank != 0
            else (tensor,)
            for tensor in flat
        )


def _cuts(axis: Axis, rows: tf.Tensor) -> tf.Tensor:
    """`Axis.cuts` of a length that is known only when the batch is there."""
    weights = tf.constant(axis.shares or (1,) * axis.size, tf.int64)
    total = tf.reduce_sum(weights)
    counts, remainders = rows * weights // total, rows * weights % total
    # Where each part stands among the remainders, largest first, ties to the earlier part.
    place = tf.argsort(tf.argsort(-remainders, stable=True), stable=True)
    counts += tf.cast(tf.cast(place, tf.int64) < rows - tf.reduce_sum(counts), tf.int64)
    return tf.concat([[0], tf.cumsum(counts)], 0)


def _leaf(tensor: tf.Tensor, *rest: tf.Tensor) -> Any:
    if not rest:
        return tensor
    shape, start, fingerprint = rest
    return LocalPart(tensor, tuple(shape.numpy().tolist()), int(start), int(fingerprint))


def _hash(tensor: tf.Tensor) -> tf.Tensor:
    if tensor.dtype == tf.string:
        tensor = tf.strings.to_hash_bucket_fast(tensor, 2**63 - 1)
    digest = tf.raw_ops.Fingerprint(data=tf.reshape(tensor, [1, -1]), method="farmhash64")
    return tf.bitcast(digest, tf.int64)[0]


def distribute_dataset(
    dataset: tf.data.Dataset, *, axis: Axis | None = None, position: int | None = None
) -> tf.data.Dataset | DistributedDataset:
    """This process's part of a dataset of global batches, for `wh.function` steps.

    In one process that is the dataset itself, with prefetching. Over several, iterating gives elements of the same
    structure whose tensors are `LocalPart`s, which `wh.function` does not divide again; tensors without dims stay as
    they are. A batch that does not divide evenly, as the last one may be, is cut as `Axis.cuts` says, down to no rows.

    Every process runs the input pipeline and keeps its own rows, so it must be the same on all: give `shuffle` and
    random maps a seed. Where reading is what takes the time, divide the files among the processes and use
    `wh.function(inputs="local")` instead.

    Args:
      dataset: its elements are global batches of dense tensors, with the batch as dim 0.
      axis: how rows are divided; by default evenly over all devices.
      position: which part is this process's; by default its rank.

    Raises:
      TypeError: an element holds ragged or sparse tensors.
    """
    world = world_.world()
    if not world.distributed and axis is None:
        return dataset.prefetch(tf.data.AUTOTUNE)
    axis = axis or Axis("data", world.size)
    return DistributedDataset(dataset, axis, world.rank if position is None else position)
