"""Tensors as Horovod can move them: it refuses bfloat16, uint32, uint64, float8 and complex numbers (measured)."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

MOVED = frozenset(
    {
        tf.bool,
        tf.uint8,
        tf.int8,
        tf.uint16,
        tf.int16,
        tf.int32,
        tf.int64,
        tf.float16,
        tf.float32,
        tf.float64,
    }
)
_BY_SIZE = {1: tf.uint8, 2: tf.uint16, 4: tf.int32, 8: tf.int64}
_COMPLEX = {tf.complex64: tf.float32, tf.complex128: tf.float64}


def moves(dtype: tf.DType) -> bool:
    """Whether tensors of this type can be moved at all."""
    return dtype in MOVED or dtype in _COMPLEX or (dtype.is_numpy_compatible and dtype.size in _BY_SIZE)


def encode(value: tf.Tensor) -> tf.Tensor:
    """The bits of a tensor, flat, in a type that Horovod moves."""
    if value.dtype in MOVED:
        return tf.reshape(value, [-1])
    if value.dtype in _COMPLEX:
        return tf.reshape(tf.bitcast(value, _COMPLEX[value.dtype]), [-1])
    if not moves(value.dtype):
        raise TypeError(f"tensors of type {value.dtype.name} cannot be moved between processes")
    return tf.bitcast(tf.reshape(value, [-1]), _BY_SIZE[value.dtype.size])


def decode(bits: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """The inverse of `encode`, flat."""
    if dtype in MOVED:
        return bits
    return tf.bitcast(tf.reshape(bits, [-1, 2]), dtype) if dtype in _COMPLEX else tf.bitcast(bits, dtype)


def width(dtype: tf.DType) -> int:
    """How many encoded elements one element takes."""
    return 2 if dtype in _COMPLEX else 1


def view(value: tf.Tensor) -> np.ndarray:
    """An eager tensor's elements, without the copy that `numpy` makes where there is another way."""
    try:
        return np.asarray(memoryview(value))
    except (BufferError, RuntimeError, TypeError, ValueError):  # on a GPU; of a type that Python's buffers lack
        return np.asarray(value.numpy())
