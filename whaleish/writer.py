"""Writing TensorFlow functions node by node, as protos: no Python graph is ever built."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2, function_pb2, node_def_pb2

from whaleish import tf_private

Ref = str
"""A tensor of the function, as its body names it: "argument", or "node:output:0"."""

_DROPPED_ATTRS = ("_class", "_output_shapes", "_whaleish_scope")


class FunctionWriter:
    """A FunctionDef under construction.

    Attributes:
      function_def: the proto. dtypes: tensor -> TensorFlow's name of its dtype.
    """

    def __init__(self) -> None:
        self.function_def = function_pb2.FunctionDef()
        self.dtypes: dict[Ref, str] = {}
        self._constants: dict[tuple[Any, ...], Ref] = {}
        self._count = 0

    def argument(self, name: str, dtype: str, shape: tuple[int, ...] | None, variable_dtype: str | None = None) -> Ref:
        """Adds an argument.

        Args:
          dtype: "resource" for the handle of a variable, whose own dtype is then `variable_dtype`.
          shape: of the tensor, or of the variable; it helps TensorFlow's optimizer.
        """
        signature = self.function_def.signature
        argument = signature.input_arg.add(name=self.fresh(name), type=tf.as_dtype(dtype).as_datatype_enum)
        if shape is not None and (dtype != "resource" or variable_dtype is not None):
            attrs = self.function_def.arg_attr[len(signature.input_arg) - 1].attr
            attrs["_handle_shapes" if variable_dtype else "_output_shapes"].list.shape.add().CopyFrom(
                tf.TensorShape(shape).as_proto()
            )
            if variable_dtype:
                attrs["_handle_dtypes"].list.type.append(tf.as_dtype(variable_dtype).as_datatype_enum)
        self.dtypes[argument.name] = dtype
        return argument.name

    def add(
        self,
        type: str,
        inputs: Sequence[Ref],
        /,
        *,
        device: str = "",
        name: str | None = None,
        controls: Sequence[str] = (),
        **attrs: Any,
    ) -> list[Ref]:
        """Adds a node; attributes that follow from the inputs need not be given. Returns its outputs.

        A given `name` is used as it is and must be new.
        """
        node = self.function_def.node_def.add(name=name or self.fresh(type), op=type, device=device)
        kinds = tf_private.attr_kinds(type)
        for key, value in attrs.items():
            node.attr[key].CopyFrom(attr_value(kinds.get(key) or _kind_of(value), value))
        self._infer(node, inputs)
        self._connect(node, inputs, controls)
        return self._declare_outputs(node)

    def copy(
        self,
        payload: node_def_pb2.NodeDef,
        inputs: Sequence[Ref],
        *,
        device: str = "",
        controls: Sequence[str] = (),
        **attrs: Any,
    ) -> list[Ref]:
        """Adds a node like `payload` with other inputs, and some attributes replaced. Returns its outputs."""
        node = self.function_def.node_def.add()
        node.CopyFrom(payload)
        del node.input[:]
        node.name, node.device = self.fresh(payload.name), device
        for key in _DROPPED_ATTRS:
            if key in node.attr:
                del node.attr[key]
        for key, value in attrs.items():
            node.attr[key].CopyFrom(attr_value(tf_private.attr_kinds(node.op)[key], value))
        self._connect(node, inputs, controls)
        return self._declare_outputs(node)

    def const(self, value: Any, dtype: str, device: str = "") -> Ref:
        """A constant, written once for equal values on one device."""
        array = np.asarray(value, tf.as_dtype(dtype).as_numpy_dtype)
        content = array.tobytes() if array.dtype != object else repr(array)
        key = (dtype, array.shape, content, device)
        if key not in self._constants:
            proto = tf.make_tensor_proto(array, dtype=tf.as_dtype(dtype), shape=array.shape)
            (self._constants[key],) = self.add("Const", [], device=device, dtype=dtype, value=proto)
        return self._constants[key]

    def declare(self, ref: Ref, dtype: str) -> Ref:
        """Announces an output of a node that is written later."""
        self.dtypes[ref] = dtype
        return ref

    def finish(self, name: str, outputs: Sequence[Ref], must_run: Sequence[str]) -> function_pb2.FunctionDef:
        """The function, returning `outputs`, with nodes that run though nothing reads them."""
        signature = self.function_def.signature
        signature.name, signature.is_stateful = name, True
        for number, ref in enumerate(outputs):
            result = signature.output_arg.add(
                name=f"result_{number}", type=tf.as_dtype(self.dtypes[ref]).as_datatype_enum
            )
            self.function_def.ret[result.name] = ref
        for number, node in enumerate(must_run):
            signature.control_output.append(f"must_run_{number}")
            self.function_def.control_ret[f"must_run_{number}"] = node
        return self.function_def

    def fresh(self, hint: str) -> str:
        """A name not used before; the same on all ranks that write the same nodes."""
        self._count += 1
        return f"{hint}_{self._count}"

    def _connect(self, node: node_def_pb2.NodeDef, inputs: Sequence[Ref], controls: Sequence[str]) -> None:
        node.input.extend(inputs)
        node.input.extend("^" + name for name in dict.fromkeys(controls))

    def _infer(self, node: node_def_pb2.NodeDef, inputs: Sequence[Ref]) -> None:
        """Fills in the numbers and types that an op's definition takes from its inputs."""
        definition = tf_private.op_def(node.op)
        position = 0
        for argument in definition.input_arg:
            count = 1
            if argument.number_attr:
                if argument.number_attr not in node.attr:
                    node.attr[argument.number_attr].i = len(inputs) - len(definition.input_arg) + 1
                count = node.attr[argument.number_attr].i
            elif argument.type_list_attr:
                count = len(inputs) - len(definition.input_arg) + 1
                types = [tf.as_dtype(self.dtypes[ref]).as_datatype_enum for ref in inputs[position : position + count]]
                if argument.type_list_attr not in node.attr:
                    node.attr[argument.type_list_attr].list.type.extend(types)
            if argument.type_attr and argument.type_attr not in node.attr and count:
                node.attr[argument.type_attr].type = tf.as_dtype(self.dtypes[inputs[position]]).as_datatype_enum
            position += count

    def _declare_outputs(self, node: node_def_pb2.NodeDef) -> list[Ref]:
        refs: list[Ref] = []
        for argument in tf_private.op_def(node.op).output_arg:
            if argument.type_list_attr:
                types = list(node.attr[argument.type_list_attr].list.type)
            else:
                default = tf_private.default_type(node.op, argument.type_attr) if argument.type_attr else argument.type
                dtype = node.attr[argument.type_attr].type if argument.type_attr in node.attr else default
                types = [dtype] * (node.attr[argument.number_attr].i if argument.number_attr else 1)
            for slot, dtype in enumerate(types):
                refs.append(self.declare(output_ref(node.name, argument.name, slot), _dtype_name(dtype)))
        return refs


def output_ref(node: str, output: str, slot: int = 0) -> Ref:
    """How a function's body names tensor `slot` of a node's output."""
    return f"{node}:{output}:{slot}"


@functools.cache
def _dtype_name(dtype: int) -> str:
    return str(tf.as_dtype(dtype).name)


def attr_value(kind: str, value: Any) -> attr_value_pb2.AttrValue:
    """A Python value as an attribute of the kind that the op's definition names ("type", "list(int)", ...)."""
    result = attr_value_pb2.AttrValue()
    if kind.startswith("list("):
        element = kind[5:-1]
        result.list.SetInParent()
        for item in value:
            _append(result.list, element, attr_value(element, item))
    elif kind == "type":
        result.type = tf.as_dtype(value).as_datatype_enum
    elif kind == "shape":
        result.shape.CopyFrom(tf.TensorShape(value).as_proto())
    elif kind == "tensor":
        result.tensor.CopyFrom(value)
    elif kind == "func":
        result.func.name = value
    elif kind == "string":
        result.s = value if isinstance(value, bytes) else str(value).encode()
    elif kind == "bool":
        result.b = bool(value)
    elif kind == "int":
        result.i = int(value)
    elif kind == "float":
        result.f = float(value)
    else:
        raise TypeError(f"attributes of kind {kind!r} cannot be written (value {value!r})")
    return result


def _append(target: Any, element: str, item: attr_value_pb2.AttrValue) -> None:
    name = {"string": "s", "int": "i", "float": "f", "bool": "b"}.get(element, element)
    if name in ("shape", "tensor", "func"):
        getattr(target, name).add().CopyFrom(getattr(item, name))
    else:
        getattr(target, name).append(getattr(item, name))


def _kind_of(value: Any) -> str:
    """For private attributes, which op definitions do not list."""
    return {bool: "bool", int: "int", float: "float"}.get(type(value), "string")
