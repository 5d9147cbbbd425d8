"""Liveness: which tensors a device holds while a planned step runs, and when they take the most room.

TensorFlow runs an op as soon as what it reads is there, whatever the order of the graph: so here ops run in the order
in which they become ready. A tensor is held from the op that makes it until the last that reads it; what shares its
memory (a reshape of it, say) holds it too, and an elementwise op writes over an input that nobody reads after it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from whaleish.graph import BACKWARD, FORWARD, UPDATE, LogicalGraph, layout_bytes
from whaleish.planner.moves import Move, find_moves
from whaleish.planner.plan import Plan
from whaleish.rules.control import CONTROL
from whaleish.rules.elementwise import (
    BINARY,
    COPIES,
    FALLING,
    GRADIENT_FIRST,
    GRADIENT_SECOND,
    LINEAR,
    PRODUCTS,
    QUOTIENTS,
    RISING,
    SUMS,
    UNARY,
)
from whaleish.sbp import Layout

WEIGHTS, SLOTS, ARGUMENTS = "weights", "slots", "arguments"
ACTIVATIONS, GRADIENTS, GATHERED, WORKSPACE = "activations", "gradients", "gathered weights", "workspace"
KINDS = (WEIGHTS, SLOTS, ARGUMENTS, ACTIVATIONS, GRADIENTS, GATHERED, WORKSPACE)
"""Slots are what an optimizer keeps, and other variables that are not trained; activations what the forward makes, also
when it makes it again; gradients those that updates read; workspace all else."""

_ALIASES = frozenset({*COPIES, "ExpandDims", "Reshape", "Squeeze", "ReadVariableOp", "Bitcast"})
_IN_PLACE = frozenset(
    {*UNARY, *LINEAR, *RISING, *FALLING, *BINARY, *SUMS, *PRODUCTS, *QUOTIENTS, *GRADIENT_FIRST, *GRADIENT_SECOND}
    | {"AddN", "BiasAdd", "Maximum", "Minimum", "SelectV2", "Softmax", "LogSoftmax"}
)


_Buffer = tuple[int, Layout]
"""A tensor in a layout."""


@dataclass(frozen=True)
class Held:
    """A tensor in a layout, as a device holds it.

    Attributes:
      nbytes: of the device's piece. kind: one of `KINDS`.
      place: the op that makes it, as errors name it.
    """

    tensor: int
    layout: Layout
    nbytes: int
    kind: str
    place: str


@dataclass(frozen=True)
class Peak:
    """When a device holds most.

    Attributes:
      nbytes: of all that it holds then. op: what runs then. held: everything, the largest first.
    """

    nbytes: int
    op: int
    held: tuple[Held, ...]

    def of(self, *kinds: str) -> int:
        """Bytes of some kinds; of all without any."""
        return sum(held.nbytes for held in self.held if not kinds or held.kind in kinds)


def find_peak(graph: LogicalGraph, plan: Plan, part: int = 0) -> Peak:
    """When a part of the mesh holds the most bytes, and of what.

    Loops count as if each op of their bodies ran once. With micro-batches it is the peak of one of them.

    Args:
      graph, plan: expanded, without stages, or a chunk's.
    """
    return _Liveness(graph, plan, part).peak()


class _Liveness:
    def __init__(self, graph: LogicalGraph, plan: Plan, part: int) -> None:
        self.graph, self.plan, self.part = graph, plan, part
        self.moves = find_moves(graph, plan)
        self.handles, self.given = graph.variable_of(), set(graph.inputs)
        self.read_from: dict[int, int] = {}  # tensor that is a variable's value as it is read -> the handle
        self.updated: set[int] = set()
        for op in graph.ops:
            if op.type == "ReadVariableOp":
                self.read_from[op.outputs[0]] = op.inputs[0]
            if op.phase == UPDATE:
                self.updated.update(op.inputs)

    def peak(self) -> Peak:
        graph, fixed = self.graph, list(self._fixed())
        base = sum(held.nbytes for held in fixed)
        order = self.order
        root, last = self._buffers(order)
        ends: list[list[_Buffer]] = [[] for _ in range(len(order) + 1)]
        for buffer, position in last.items():
            ends[position].append(buffer)
        alive: dict[_Buffer, int] = {}
        total = best = 0
        at, then = -1, dict(alive)
        for position, index in enumerate(order):
            made = [b for b in self._made(index) if root[b] == b]
            ending = [b for b in ends[position] if b in alive]
            for buffer in made:
                nbytes = self._nbytes(*buffer)
                if graph.ops[index].type in _IN_PLACE:  # written over an input of the same size
                    over = next((b for b in ending if b in alive and alive[b] == nbytes and nbytes), None)
                    if over is not None:
                        total -= alive.pop(over)
                alive[buffer] = nbytes
                total += nbytes
            if total > best:
                best, at, then = total, index, dict(alive)
            for buffer in ends[position]:
                total -= alive.pop(buffer, 0)
        held = [*fixed, *(self._held(*buffer, nbytes) for buffer, nbytes in then.items() if nbytes)]
        return Peak(base + best, at, tuple(sorted(held, key=lambda h: (-h.nbytes, h.tensor))))

    @cached_property
    def order(self) -> list[int]:
        """The ops, as they become ready."""
        graph, ops = self.graph, self.graph.ops
        if len(graph.regions) > 1:
            return list(range(len(ops)))
        before = [
            {graph.tensors[t].producer for t in op.inputs if t not in graph.constants} | set(op.controls) for op in ops
        ]
        after: list[list[int]] = [[] for _ in ops]
        for index, earlier in enumerate(before):
            for other in earlier:
                after[other].append(index)
        waits = [len(earlier) for earlier in before]
        ready = deque(index for index, count in enumerate(waits) if not count)
        order = []
        while ready:
            index = ready.popleft()
            order.append(index)
            for reader in after[index]:
                waits[reader] -= 1
                if not waits[reader]:
                    ready.append(reader)
        return order

    def _buffers(self, order: list[int]) -> tuple[dict[_Buffer, _Buffer], dict[_Buffer, int]]:
        """Buffer -> the one whose memory it shares; and of those that have memory when they are last read."""
        graph = self.graph
        root: dict[_Buffer, _Buffer] = {}
        last: dict[_Buffer, int] = {}
        for position, index in enumerate(order):
            op, choice = graph.ops[index], self.plan.choices[index]
            for tensor, layout in self._read(index):
                buffer = (tensor, layout)
                for step in self._route(tensor, layout):
                    root.setdefault(step, step)
                    last[root[step]] = position
                root.setdefault(buffer, buffer)
                last[root[buffer]] = position
            for tensor, layout in zip(op.outputs, choice.outputs, strict=True):
                buffer = (tensor, layout)
                source = (op.inputs[0], choice.inputs[0]) if op.inputs and op.type in _ALIASES else buffer
                root[buffer] = root.get(source, buffer)
                last[root[buffer]] = max(position, last.get(root[buffer], 0))
        end = len(order)
        for tensor, layout in zip(graph.outputs, self.plan.outputs, strict=True):
            for step in (*self._route(tensor, layout), (tensor, layout)):
                last[root.setdefault(step, step)] = end
        return root, last

    def _read(self, index: int) -> Iterator[_Buffer]:
        """What an op reads, in which layouts."""
        for pair in zip(self.graph.ops[index].inputs, self.plan.choices[index].inputs, strict=True):
            if pair[0] not in self.graph.constants:
                yield pair

    def _route(self, tensor: int, layout: Layout) -> Iterator[_Buffer]:
        """The layouts by way of which a tensor comes into one."""
        move: Move | None = self.moves.get((tensor, layout))
        while move is not None:
            yield tensor, move.source
            move = self.moves.get((tensor, move.source))

    def _made(self, index: int) -> list[_Buffer]:
        """The buffers that are there when an op runs, and were not before: what is boxed for it, and what it makes."""
        op, choice = self.graph.ops[index], self.plan.choices[index]
        made = [pair for tensor, layout in self._read(index) if (pair := (tensor, layout)) in self._first_boxed(index)]
        return made + list(zip(op.outputs, choice.outputs, strict=True))

    def _first_boxed(self, index: int) -> set[_Buffer]:
        return {pair for pair in self._read(index) if pair in self.moves and self._boxed_at[pair] == index}

    @cached_property
    def _boxed_at(self) -> dict[_Buffer, int]:
        first: dict[_Buffer, int] = {}
        for index in self.order:
            for pair in self._read(index):
                first.setdefault(pair, index)
        return first

    def _nbytes(self, tensor: int, layout: Layout) -> int:
        spec = self.graph.tensors[tensor]
        if spec.shape is None or tensor in self.handles or tensor in self.graph.constants:
            return 0
        arrived = tensor in self.given and layout == self.plan.choices[spec.producer].outputs[0]
        if arrived or spec.dtype in ("resource", "variant") or self.graph.ops[spec.producer].type in CONTROL:
            return 0
        return layout_bytes(self.plan.mesh.local_shape(spec.shape, layout, self.part), spec.dtype)

    def _fixed(self) -> Iterator[Held]:
        """What is there all the time: variables, and the step's arguments."""
        space = self.plan.mesh.in_space
        place = self.plan.mesh.place(self.part)
        for variable, (_, layout) in zip(self.graph.variables, self.plan.variables, strict=True):
            nbytes = layout_bytes(space.local_shape(variable.shape, layout, place), variable.dtype)
            kind = WEIGHTS if variable.trainable else SLOTS
            yield Held(variable.handle, layout, nbytes, kind, f"variable {variable.name!r}")
        for tensor, layout in zip(self.graph.inputs, self.plan.inputs, strict=True):
            spec = self.graph.tensors[tensor]
            parts = space.flat if spec.shape is not None else None
            if parts is not None and len(layout) == 1:
                nbytes = layout_bytes(parts.local_shape(spec.shape or (), layout, place), spec.dtype)
                yield Held(tensor, layout, nbytes, ARGUMENTS, self.graph.place(spec.producer))

    def _held(self, tensor: int, layout: Layout, nbytes: int) -> Held:
        producer = self.graph.tensors[tensor].producer
        return Held(tensor, layout, nbytes, self._kind(tensor), self.graph.place(producer))

    def _kind(self, tensor: int) -> str:
        if tensor in self.read_from:
            return GATHERED
        if tensor in self.given:
            return ARGUMENTS
        op = self.graph.ops[self.graph.tensors[tensor].producer]
        if op.phase == FORWARD or op.again:
            return ACTIVATIONS
        return GRADIENTS if op.phase == BACKWARD and tensor in self.updated else WORKSPACE
