"""Which line of the user's code made an op."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Callable, Mapping
from typing import Any

import keras
import tensorflow as tf

from whaleish.capture import tf_private
from whaleish.graph import LogicalGraph

_WHALEISH = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_OTHERS = tuple(os.path.join(os.path.dirname(os.path.abspath(path)), "") for path in (tf.__file__, keras.__file__))
_STANDARD = os.path.join(sysconfig.get_paths()["stdlib"], "")


def source_finder(
    graph: LogicalGraph, traced: tf.Graph, origins: Mapping[str, tuple[str, str]]
) -> Callable[[int], str]:
    """`LogicalGraph.source`: looks lines up when asked, for that is slow.

    Args:
      traced: the graph of the traced step, in which an op is found by its name.
      origins: name -> (library function, name there), for ops that came out of calls.
    """

    def source(index: int) -> str:
        name = graph.ops[index].name
        name = name if name in origins else _folded_from(name, traced, origins)
        function, inner = origins.get(name, ("", name))
        home = tf_private.function_graph(traced, function) if function else traced
        try:
            return line_of(home.get_operation_by_name(inner)) if home is not None else ""
        except (KeyError, ValueError):
            return ""

    return source


def line_of(operation: Any) -> str:
    """ "file.py:12" of the deepest frame of the op's traceback that is the user's; "" where there is none."""
    for frame in reversed(list(operation.traceback)):
        if _is_users(frame.filename):
            path = os.path.relpath(frame.filename)
            return f"{frame.filename if path.startswith('..') else path}:{frame.lineno}"
    return ""


def _is_users(path: str) -> bool:
    if path.startswith(("<", os.path.join(_WHALEISH, ""), *_OTHERS)):
        return False
    return not path.startswith(_STANDARD) or "site-packages" in path


def _folded_from(name: str, traced: tf.Graph, origins: Mapping[str, tuple[str, str]]) -> str:
    """The op of which folding made the constant `name` (it appends /output_N where there are several outputs)."""
    before, mark, number = name.rpartition("/output_")
    return before if mark and number.isdigit() and before in origins else name
