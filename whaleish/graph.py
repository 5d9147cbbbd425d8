"""The logical graph: a whole training step as one device would run it, as plain data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from whaleish.sbp import Layout, Sbp

FORWARD, BACKWARD, UPDATE = "forward", "backward", "update"


@dataclass(frozen=True, slots=True)
class Scope:
    """One `with` of the user's, as an annotation.

    Attributes:
      kind: "replica", "split", "accumulate", "stage", "pipeline", "local_statistics", "recompute",
        "offload" or "auto".
      number: which entering of which scope it was, in the order of the trace.
      options: the scope's arguments that are not their defaults, as sorted (name, value) pairs.
    """

    kind: str
    number: int
    options: tuple[tuple[str, Any], ...] = ()

    def option(self, name: str, default: Any = None) -> Any:
        return dict(self.options).get(name, default)


ScopePath = tuple[Scope, ...]
"""The scopes round an op, outer to inner."""


@dataclass(frozen=True, slots=True)
class Region:
    """The step itself, or a body of a loop or condition in it.

    Attributes:
      parent: number of the region in which the loop or condition stands; -1 for the step.
      trips: how often the body runs whenever its parent does; 1 where that is not known.
    """

    parent: int = -1
    trips: int = 1


@dataclass(slots=True)
class Tensor:
    """One output of an op.

    Attributes:
      producer: index of the op that makes it; slot: which of its outputs it is.
      shape: logical; None where unknown (rank or dims), which leaves the tensor whole on every device.
        The shape of a resource tensor is that of its variable, the shape of a list that of its elements.
      dtype: TensorFlow's name ("float32", "resource", ...).
    """

    producer: int
    slot: int
    shape: tuple[int, ...] | None
    dtype: str


@dataclass(slots=True)
class Op:
    """One operation. Tensors are named by their index in `LogicalGraph.tensors`, ops by theirs in `.ops`.

    Attributes:
      attrs: attributes as Python values (types by name, shapes as tuples or None); large constants are left out.
      phase: FORWARD, BACKWARD or UPDATE.
      scope: index into `LogicalGraph.scopes` of the scopes it was made in.
      pinned: the layout of its (only) output, where the user stated one.
      region: index into `LogicalGraph.regions` of the body that it is an op of.
      payload: what the front end keeps for the rewriter (the op's NodeDef), opaque here; None for ops that a pass made.
      again: 0; of a copy of another op, by which what that makes is made again, the number of the repeat that it is of.
    """

    name: str
    type: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    controls: tuple[int, ...] = ()
    attrs: Mapping[str, Any] = field(default_factory=dict)
    phase: str = FORWARD
    scope: int = 0
    payload: Any = None
    pinned: Layout = ()
    region: int = 0
    again: int = 0


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable that the step reads or writes.

    Attributes:
      name: as the user named it, unique in the graph.
      handle: index of the resource tensor that stands for it.
      pinned: its layout, where the user stated one.
      on_host: whether it lies in the host's memory, and what reads it or assigns to it runs there.
    """

    name: str
    handle: int
    shape: tuple[int, ...]
    dtype: str
    trainable: bool
    pinned: Layout = ()
    on_host: bool = False


@dataclass
class LogicalGraph:
    """A training step. `ops` is in a topological order that keeps the order in which the user's code made them.

    The ops of loops' and conditions' bodies stand among the others and read their tensors directly; each says of which
    region it is. What joins regions are the ops of `rules/control.py`.

    Attributes:
      inputs: tensors of the step's arguments; outputs: tensors that it returns (both without variables).
      variables: in the order in which the step captured them.
      constants: values of tensors known before running (folded shapes, axes, small literals).
      scopes: the distinct scope paths; number 0 is the empty one.
      regions: number 0 is the step; a body comes after the region that it is in.
      effects: ops that must run though nothing reads them (assignments, prints, asserts).
      source: op index -> "file.py:12" of the user's line, or "" where it is unknown.
    """

    ops: list[Op] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)
    inputs: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()
    variables: tuple[Variable, ...] = ()
    constants: dict[int, np.ndarray] = field(default_factory=dict)
    scopes: list[ScopePath] = field(default_factory=lambda: [()])
    regions: list[Region] = field(default_factory=lambda: [Region()])
    effects: tuple[int, ...] = ()
    source: Callable[[int], str] = field(default=lambda index: "", repr=False)

    def add(
        self,
        type: str,
        inputs: tuple[int, ...],
        outputs: list[tuple[tuple[int, ...] | None, str]],
        *,
        name: str,
        **rest: Any,
    ) -> Op:
        """Appends an op with fresh output tensors, given as (shape, dtype)."""
        index, first = len(self.ops), len(self.tensors)
        self.tensors += [Tensor(index, slot, shape, dtype) for slot, (shape, dtype) in enumerate(outputs)]
        op = Op(name, type, inputs, tuple(range(first, len(self.tensors))), **rest)
        self.ops.append(op)
        return op

    def is_constant(self, op: int) -> bool:
        """Whether all that an op makes is known before running."""
        outputs = self.ops[op].outputs
        return bool(outputs) and all(tensor in self.constants for tensor in outputs)

    def order_free(self) -> set[int]:
        """The ops for which it is no matter whether they run before or after others that they do not read.

        They make something, and see and change no state; a failing check ends the step whenever it runs.
        """
        stateful = {number for number, tensor in enumerate(self.tensors) if tensor.dtype in ("resource", "variant")}
        effects = {index for index in self.effects if self.ops[index].type not in ("CheckNumerics", "CheckNumericsV2")}
        return {
            index
            for index, op in enumerate(self.ops)
            if op.outputs and index not in effects and not stateful & {*op.inputs, *op.outputs}
        }

    def consumers(self) -> list[list[int]]:
        """For each tensor, the indices of the ops that read it (once for each time)."""
        readers: list[list[int]] = [[] for _ in self.tensors]
        for index, op in enumerate(self.ops):
            for tensor in op.inputs:
                readers[tensor].append(index)
        return readers

    def place(self, index: int) -> str:
        """`Relu 'dense/Relu' at train.py:12`, of an op; "" where there is no op of that number."""
        if index >= len(self.ops):
            return ""
        op, source = self.ops[index], self.source(index)
        return f"{op.type} {op.name!r}" + (f" at {source}" if source else "")

    def begin(self, scope: Scope) -> str:
        """` (from train.py:12 on)`, of the first op inside a scope whose line is known; "" where there is none."""
        inside = (index for index, op in enumerate(self.ops) if scope in self.scopes[op.scope])
        line = next(filter(None, map(self.source, inside)), "")
        return f" (from {line} on)" if line else ""

    def repeats(self, op: int) -> int:
        """How often an op runs in a step, as far as that is known."""
        count, region = 1, self.ops[op].region
        while region:
            count *= self.regions[region].trips
            region = self.regions[region].parent
        return count

    def lists(self) -> dict[int, int]:
        """Variant tensor -> the first tensor of its family: lists made of one another, and lists of those."""
        parent = {number: number for number, tensor in enumerate(self.tensors) if tensor.dtype == "variant"}

        def find(tensor: int) -> int:
            while parent[tensor] != tensor:
                parent[tensor] = tensor = parent[parent[tensor]]
            return tensor

        for op in self.ops:
            together = [find(t) for t in (*op.inputs, *op.outputs) if t in parent]
            parent.update(dict.fromkeys(together, min(together, default=-1)))
        return {tensor: find(tensor) for tensor in parent}

    def variable_of(self) -> dict[int, Variable]:
        """Resource tensor -> variable."""
        return {variable.handle: variable for variable in self.variables}


def layout_bytes(shape: tuple[int, ...], dtype: str) -> int:
    """Bytes of a whole tensor; 0 for what has no fixed size (strings, resources, variants)."""
    try:
        width = {"bfloat16": 2, "half": 2, "float": 4, "double": 8}.get(dtype) or np.dtype(dtype).itemsize
    except TypeError:
        return 0
    count = 1
    for length in shape:
        count *= length
    return count * width


__all__ = [
    "BACKWARD",
    "FORWARD",
    "UPDATE",
    "LogicalGraph",
    "Op",
    "Region",
    "Sbp",
    "Scope",
    "ScopePath",
    "Tensor",
    "Variable",
    "layout_bytes",
]
