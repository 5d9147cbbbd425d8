"""The functions that remaining ops refer to (a dataset's, say), under names that are equal on every process.

TensorFlow numbers functions by a counter of the process ("while_body_231"). Here a name ends in a hash of the body, so
that equal steps have equal graphs, and functions of different captures never clash.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

# Attributes that name functions or gradients by the process's counter, and that nothing here needs.
_FUNCTION_ATTRIBUTES = ("forward_function_name", "backward_function_name")
_NODE_ATTRIBUTES = ("_gradient_op_type",)


def keep_functions(nodes: Iterable[tf.compat.v1.NodeDef], definition: tf.compat.v1.GraphDef) -> tf.compat.v1.GraphDef:
    """Renames, in place, the functions that the nodes refer to; returns a graph with only those in its library."""
    kept = tf.compat.v1.GraphDef(versions=definition.versions)
    functions = {function.signature.name: function for function in definition.library.function}
    renamed: dict[str, str] = {}

    def rename(name: str) -> str:
        if name not in renamed and name in functions:
            function = type(functions[name])()
            function.CopyFrom(functions[name])
            renamed[name] = name  # for a function that refers to itself
            for attribute in _FUNCTION_ATTRIBUTES:
                function.attr.pop(attribute, None)
            for node in function.node_def:
                _rename_in(node, rename)
            _number_arguments(function)
            function.signature.name = ""
            digest = hashlib.sha256(function.SerializeToString(deterministic=True)).hexdigest()[:12]
            base = re.sub(r"^_*(inference_|forward_|backward_)*_*|_\d+(?=_|$)", "", name) or "function"
            renamed[name] = function.signature.name = f"{base}_{digest}"
            if not any(other.signature.name == renamed[name] for other in kept.library.function):
                kept.library.function.append(function)
        return renamed.get(name, name)

    for node in nodes:
        _rename_in(node, rename)
    return kept


def _number_arguments(function: Any) -> None:
    """Names a function's arguments by their places: TensorFlow puts its counter into some names."""
    names = {}
    for number, argument in enumerate(function.signature.input_arg):
        names[argument.name] = argument.name = f"whaleish_argument_{number}"
    for attributes in function.arg_attr.values():
        attributes.attr.pop("_user_specified_name", None)
    for node in function.node_def:
        for place, text in enumerate(node.input):
            if text.lstrip("^") in names:  # outputs of nodes have colons in them; a node has no argument's name
                node.input[place] = ("^" if text[0] == "^" else "") + names[text.lstrip("^")]
    for result, text in list(function.ret.items()):
        function.ret[result] = names.get(text, text)


def _rename_in(node: tf.compat.v1.NodeDef, rename: Callable[[str], str]) -> None:
    for attribute in _NODE_ATTRIBUTES:
        node.attr.pop(attribute, None)
    if node.op in ("Const", "Placeholder", "ReadVariableOp"):  # most nodes, and none of them refers to a function
        return
    for _, value in sorted(node.attr.items()):  # protos keep no order
        if value.HasField("func"):
            value.func.name = rename(value.func.name)
        elif value.HasField("list"):
            for function in value.list.func:
                function.name = rename(function.name)
