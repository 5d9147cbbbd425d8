"""Arguments of a step: which of them are tensors, and how they are taken apart and put together again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf


@dataclass(frozen=True, eq=False)
class Signature:
    """What a trace of a step depends on, besides the step.

    Tensors and arrays are taken by shape and dtype; all else (Python scalars, strings, models) by value or identity.

    Attributes:
      specs: one per flat tensor argument, fully static.
      key: hashable; equal for calls that may share a trace.
    """

    specs: tuple[tf.TensorSpec, ...]
    key: tuple[Any, ...]
    _structure: Any
    _leaves: tuple[Any, ...]

    def python_values(self) -> str:
        """What the flat arguments besides tensors are; of objects, their type."""
        plain = (type(None), bool, int, float, complex, str, bytes)
        rest = [leaf for leaf in self._leaves if not isinstance(leaf, _Taken)]
        return ", ".join(repr(leaf) if isinstance(leaf, plain) else type(leaf).__name__ for leaf in rest) or "none"

    def pack(self, tensors: Sequence[tf.Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """(args, kwargs) with these tensors in the places of the flat tensor arguments."""
        rest = iter(tensors)
        leaves = [leaf.take(rest) if isinstance(leaf, _Taken) else leaf for leaf in self._leaves]
        return tf.nest.pack_sequence_as(self._structure, leaves)


@dataclass(frozen=True)
class _Taken:
    """A leaf whose place the flat tensor arguments take: one for a tensor, more for a ragged or sparse tensor."""

    composite: Any = None
    count: int = 1

    def take(self, tensors: Iterator[tf.Tensor]) -> Any:
        parts = [next(tensors) for _ in range(self.count)]
        return parts[0] if self.composite is None else tf.nest.pack_sequence_as(self.composite, parts, True)


def take_apart(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Signature, list[Any]]:
    """The signature of a call, and its flat tensor arguments (tensors and arrays, or specs where specs were given).

    Raises:
      ValueError: where a `TensorSpec` is not fully static.
    """
    structure = (tuple(args), dict(kwargs))
    given = tf.nest.flatten(structure)
    leaves: list[Any] = []
    flat: list[Any] = []
    specs: list[tf.TensorSpec] = []
    key: list[Any] = []
    for place, leaf in enumerate(given):
        if isinstance(leaf, tf.__internal__.CompositeTensor) and not isinstance(leaf, tf.Variable):
            parts = tf.nest.flatten(leaf, expand_composites=True)
            leaves.append(_Taken(tf.type_spec_from_value(leaf), len(parts)))
            key.append(type(leaf))
        elif isinstance(leaf, tf.Tensor | np.ndarray | np.generic | tf.TensorSpec):
            parts = [leaf]
            leaves.append(_Taken())
        else:
            leaves.append(leaf)
            key.append(_identity(leaf))
            continue
        for part in parts:
            spec = _static_spec(part, lambda place=place: argument_name(structure, place))
            specs.append(spec)
            flat.append(part)
            key.append((spec.shape.as_list(), spec.dtype.name).__repr__())
    return Signature(tuple(specs), (_shape_key(structure), *key), structure, tuple(leaves)), flat


def argument_name(structure: Any, place: int) -> str:
    """How the user would write the argument whose leaf has this number: "args[0]['image']"."""
    args, kwargs = structure
    names = [name for number, value in enumerate(args) for name in _names(value, f"args[{number}]")]
    names += [name for word in sorted(kwargs) for name in _names(kwargs[word], word)]
    return names[place]


def _names(value: Any, name: str) -> list[str]:
    if not tf.nest.is_nested(value):
        return [name]
    if isinstance(value, Mapping):
        return [found for key in sorted(value) for found in _names(value[key], f"{name}[{key!r}]")]
    if isinstance(value, list | tuple):
        fields = getattr(value, "_fields", None)
        texts = [f"{name}.{field}" for field in fields] if fields else [f"{name}[{n}]" for n in range(len(value))]
        return [found for item, text in zip(value, texts, strict=True) for found in _names(item, text)]
    return [name] * len(tf.nest.flatten(value))


def _shape_key(value: Any) -> Any:
    """A hashable picture of a structure without its leaves."""
    if not tf.nest.is_nested(value):
        return None
    if isinstance(value, Mapping):
        return (type(value), tuple(sorted(value)), tuple(_shape_key(value[key]) for key in sorted(value)))
    if isinstance(value, list | tuple):
        return (type(value), tuple(map(_shape_key, value)))
    return (type(value), len(tf.nest.flatten(value)))


def _identity(leaf: Any) -> Any:
    if leaf is None or isinstance(leaf, bool | int | float | complex | str | bytes):
        return (type(leaf), leaf)
    return (type(leaf), id(leaf))


def _static_spec(part: Any, name: Any) -> tf.TensorSpec:
    if isinstance(part, np.ndarray | np.generic):
        return tf.TensorSpec(part.shape, tf.as_dtype(part.dtype))
    if not part.shape.is_fully_defined():
        raise ValueError(
            f"argument {name()} has shape {part.shape}, which is not static. whaleish compiles a step for whole static "
            "shapes: give every dim a number (each new shape is compiled once and kept), or call with real tensors"
        )
    return tf.TensorSpec(part.shape, part.dtype)
