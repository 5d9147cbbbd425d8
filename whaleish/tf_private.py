"""The few private calls into TensorFlow that writing and running functions needs, all in this file."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context, record
from tensorflow.python.framework import op_def_registry


@functools.cache
def op_def(type: str) -> Any:
    """The definition of an op type; raises ValueError for one that TensorFlow (with its loaded plugins) lacks."""
    found = op_def_registry.get(type)
    if found is None:
        raise ValueError(f"op type {type!r} is not known to this TensorFlow")
    return found


@functools.cache
def attr_kinds(type: str) -> dict[str, str]:
    """Attribute name -> kind ("type", "list(int)", ...) of an op type."""
    return {attr.name: attr.type for attr in op_def(type).attr}


@functools.cache
def default_type(type: str, attr: str) -> int:
    """The default of a type attribute, as a DataType number; 0 for none."""
    return int(next(a.default_value.type for a in op_def(type).attr if a.name == attr))


def register_function(function_def: Any) -> None:
    """Makes a FunctionDef callable in this process, unless one of its name is."""
    if not context.context().has_function(function_def.signature.name.encode()):
        context.context().add_function_def(function_def)


def remove_function(name: str) -> None:
    if context.context().has_function(name.encode()):
        context.context().remove_function(name.encode())


def call_function(name: str, inputs: Sequence[tf.Tensor], num_outputs: int) -> list[tf.Tensor]:
    """Runs a registered function."""
    with record.stop_recording():
        return context.context().call_function(name.encode(), list(inputs), num_outputs) or []  # it gives None for none


def global_seed() -> int | None:
    """What `tf.random.set_seed` set last."""
    return context.global_seed()


@contextlib.contextmanager
def under_global_seed(seed: int) -> Iterator[None]:
    """As after `tf.random.set_seed(seed)`, for a while; then all goes on as it was."""
    here = context.context()
    before = here._seed, here._rng
    here._set_global_seed(seed)
    try:
        yield
    finally:
        here._seed, here._rng = before


def tape_is_recording() -> bool:
    """Whether an active GradientTape of this thread would record an op on some tensor."""
    return bool(record.could_possibly_record())
