"""Executes TensorFlow ops of any type eagerly, as strictly as a GraphDef would be read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.eager import execute as eager
from tensorflow.python.framework import op_def_library, op_def_registry


def complete_attrs(type: str, dtypes: Sequence[str], given: Mapping[str, Any]) -> dict[str, Any]:
    """Adds what the inputs imply and the defaults, in the form that capture gives (types by name, shapes as tuples)."""
    definition = op_def_registry.get(type)
    attrs = {attr.name: _plain(attr.default_value) for attr in definition.attr if attr.HasField("default_value")}
    attrs |= given
    lists = [arg for arg in definition.input_arg if arg.number_attr]
    singles = len(definition.input_arg) - len(lists)
    at = 0
    for arg in definition.input_arg:
        length = 1
        if arg.type_list_attr:
            length = len(attrs.setdefault(arg.type_list_attr, tuple(dtypes[at:])))
        elif arg.number_attr:
            length = attrs.setdefault(arg.number_attr, (len(dtypes) - singles) // len(lists))
        if arg.type_attr and length:
            attrs[arg.type_attr] = dtypes[at]
        at += length
    return attrs


def _plain(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "type":
        return tf.as_dtype(value.type).name
    if kind == "s":
        return value.s.decode()
    if kind == "shape":
        return None if value.shape.unknown_rank else tuple(dim.size for dim in value.shape.dim)
    if kind == "list":
        filled = next((items for _, items in value.list.ListFields()), ())
        return tuple(item.decode() if isinstance(item, bytes) else item for item in filled)
    return getattr(value, kind)


def execute(type: str, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> list[Any]:
    """Executes an op eagerly. Every attribute without a default must be given, as a GraphDef would need it."""
    definition = op_def_registry.get(type)
    if definition is None:
        raise ValueError(f"TensorFlow has no op type {type}")
    if _has_no_cpu_kernel(type, inputs, attrs):
        return _execute_compiled(type, inputs, attrs)
    flat: list[Any] = []
    known = {attr.name for attr in definition.attr}
    if unknown := [name for name in attrs if name not in known and not name.startswith("_")]:
        raise ValueError(f"{type} has no attributes {unknown}")
    for attr in definition.attr:
        if attr.name in attrs:
            flat += [attr.name, _wire(attr.type, attrs[attr.name])]
        elif not attr.HasField("default_value"):
            raise ValueError(f"{type} was emitted without its attribute {attr.name!r}, which has no default")
    count = 0
    for arg in definition.output_arg:
        length = attrs[arg.number_attr] if arg.number_attr else 1
        count += len(attrs[arg.type_list_attr]) if arg.type_list_attr else length
    return list(eager.execute(type.encode(), count, list(inputs), tuple(flat), context.context()) or ())


def _has_no_cpu_kernel(type: str, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> bool:
    """Convolutions that only XLA can do on a CPU: channels first, and gradients with dilations or groups."""
    if not any(word in type for word in ("Conv", "Pool", "BatchNorm")):
        return False
    if attrs.get("data_format", "N").startswith("NC"):
        return True
    if "Backprop" not in type or type.startswith("Depthwise"):
        return False
    images, kernel, _ = (tuple(x.numpy()) if x.dtype == tf.int32 else tuple(x.shape) for x in inputs)
    return max(attrs["dilations"]) > 1 or images[-1] != kernel[-2]


_compiled: dict[Any, Any] = {}


def _execute_compiled(type: str, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> list[Any]:
    """Executes an op by XLA; what is integer there are sizes, which it needs when it compiles."""
    sizes = {i: tuple(map(int, x.numpy())) for i, x in enumerate(inputs) if x.dtype == tf.int32}
    key = (type, tuple(sorted(attrs.items())), tuple(tuple(x.shape) for x in inputs), tuple(sizes.items()))
    if key not in _compiled:
        arguments = op_def_registry.get(type).input_arg
        names = [arg.name for arg in arguments]
        found = {arg.type_attr for arg in arguments}
        others = {name: value for name, value in attrs.items() if name not in found}

        def call(*refs: Any) -> Any:
            values = {names[i]: np.array(sizes[i], np.int32) if i in sizes else ref for i, ref in enumerate(refs)}
            return op_def_library.apply_op(type, **values, **others)

        _compiled[key] = tf.function(call, jit_compile=True)
    made = _compiled[key](*inputs)
    return list(made) if isinstance(made, list | tuple) else [made]


def _wire(kind: str, value: Any) -> Any:
    if kind == "type":
        return tf.as_dtype(value).as_datatype_enum
    if kind == "list(type)":
        return [tf.as_dtype(item).as_datatype_enum for item in value]
    return list(value) if kind.startswith("list") else value


def tensor(value: np.ndarray) -> tf.Tensor:
    return tf.constant(value, tf.as_dtype(value.dtype))
