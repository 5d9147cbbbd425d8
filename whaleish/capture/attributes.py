"""Attributes of TensorFlow's nodes as Python values."""

from __future__ import annotations

import functools
from typing import Any

import tensorflow as tf

MISSING = object()
"""What stands for an attribute that the logical graph leaves out."""


def attributes(node: tf.compat.v1.NodeDef) -> dict[str, Any]:
    """The node's attributes by name, without those that TensorFlow keeps for itself and without tensors."""
    found = {}
    for name in sorted(node.attr):  # protos keep no order
        if name[0] != "_" and name != "config_proto":
            python = python_value(node.attr[name])
            if python is not MISSING:
                found[name] = python
    return found


def python_value(value: tf.compat.v1.AttrValue) -> Any:
    """Types by name, shapes as tuples (-1: unknown dim) or None, lists as tuples, functions by name."""
    kind = value.WhichOneof("value")
    if kind == "list":
        for name, convert in _KINDS.items():
            values = getattr(value.list, name)
            if values:
                return tuple(map(convert, values))
        return ()
    return _KINDS[kind](getattr(value, kind)) if kind in _KINDS else MISSING


@functools.cache
def type_name(number: int) -> str:
    """TensorFlow's name for a type number: "float32", "resource"."""
    return tf.as_dtype(number).name


def _string(value: bytes) -> str | bytes:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


def _shape(value: Any) -> tuple[int, ...] | None:
    return None if value.unknown_rank else tuple(dim.size for dim in value.dim)


_KINDS = {
    "type": type_name,
    "s": _string,
    "i": int,
    "f": float,
    "b": bool,
    "shape": _shape,
    "func": lambda value: value.name,
}
