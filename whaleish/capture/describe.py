"""A captured graph as text and as a number, to find out where two processes' steps differ."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from whaleish.graph import LogicalGraph, Op
from whaleish.sbp import Layout, format_layout
from whaleish.scopes import encode

_SHOWN = 8
"""Constants of up to this many elements are written out; of others the hash is."""


def describe(graph: LogicalGraph) -> list[str]:
    """One line per input, op, output and effect.

    Equal lists mean equal steps: names are left out, for they also depend on what else a process has built.
    """
    lines = [_line(graph, number, op) for number, op in enumerate(graph.ops)]
    for variable in graph.variables:
        kind = "trainable " if variable.trainable else ""
        lines.append(
            f"{kind}variable %{variable.handle}: {_spec(variable.shape, variable.dtype)}{_pinned(variable.pinned)}"
        )
    lines += [f"region {n} in {r.parent} runs {r.trips}" for n, r in enumerate(graph.regions) if n]
    lines.append(f"inputs {_refs(graph.inputs)}")
    lines.append(f"outputs {_refs(graph.outputs)}")
    lines.append(f"effects {', '.join(map(str, graph.effects))}")
    return lines


def fingerprint(graph: LogicalGraph) -> str:
    """A hash of `describe(graph)`: 32 hex digits."""
    return hashlib.sha256("\n".join(describe(graph)).encode()).hexdigest()[:32]


def _line(graph: LogicalGraph, number: int, op: Op) -> str:
    outputs = ", ".join(_spec(graph.tensors[t].shape, graph.tensors[t].dtype) for t in op.outputs)
    attrs = " ".join(f"{name}={op.attrs[name]!r}" for name in sorted(op.attrs))
    text = f"{number} {op.type}({_refs(op.inputs)}) -> {_refs(op.outputs)} {outputs}"
    if op.controls:
        text += f" after {', '.join(map(str, op.controls))}"
    if attrs:
        text += f" {{{attrs}}}"
    if op.type == "Const":
        text += f" = {_value(graph, op)}"
    if op.region:
        text += f" of region {op.region}"
    text += _pinned(op.pinned)
    return text + (f" in {encode(graph.scopes[op.scope])}" if op.scope else "")


def _pinned(layout: Layout) -> str:
    return f" as {format_layout(layout)}" if layout else ""


def _value(graph: LogicalGraph, op: Op) -> str:
    value: Any = graph.constants.get(op.outputs[0])
    if value is None:
        return _digest(op.payload.attr["value"].tensor.SerializeToString(deterministic=True))
    return np.array2string(value, separator=",") if value.size <= _SHOWN else _digest(value.tobytes())


def _digest(data: bytes) -> str:
    return "#" + hashlib.sha256(data).hexdigest()[:16]


def _spec(shape: tuple[int, ...] | None, dtype: str) -> str:
    return dtype + ("?" if shape is None else str(list(shape)))


def _refs(tensors: Sequence[int]) -> str:
    return ", ".join(f"%{tensor}" for tensor in tensors)
