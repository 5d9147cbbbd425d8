"""Liveness: which tensors a device holds while a planned step runs, and when they take the most room.

TensorFlow runs an op as soon as what it reads is there, whatever the order of the graph: so here ops run in the order
in which they become ready, and what is boxed is boxed as soon as it is made. A tensor is held from the op that makes it
until the last that reads it; what shares its memory (a reshape of it, say) holds it too, and an elementwise op writes
over an input that nobody reads after it. What is read of a variable is the variable's own memory, until the variable is
assigned to: then the old value is a copy for as long as somebody reads it.

    micro-batches    total ════════════════════════════╗       It is the last of them that is looked at: totals over
                     begin ─▶ ... ─▶ gradient ─▶ add up ╩═▶     the others are there from its beginning on.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from whaleish.boxing.route import find_route
from whaleish.graph import BACKWARD, FORWARD, UPDATE, LogicalGraph, layout_bytes
from whaleish.planner.held import (
    ACTIVATIONS,
    ARGUMENTS,
    GATHERED,
    GRADIENTS,
    OLD_VALUE,
    REGISTERS,
    WORKSPACE,
    Held,
    Peak,
    variable_held,
)
from whaleish.planner.moves import Move, find_moves
from whaleish.planner.plan import Plan
from whaleish.planner.ready import ready_order
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
from whaleish.rules.gradient import GRADIENT
from whaleish.rules.host import TO_DEVICE, TO_HOST
from whaleish.rules.variables import READS
from whaleish.sbp import Layout

ALIASES = frozenset({*COPIES, GRADIENT, "ExpandDims", "Reshape", "Squeeze", "Bitcast"})
"""Ops whose result is in the memory of what they read."""

COPIES_OF_WEIGHTS = frozenset({*ALIASES, "Cast", "Transpose"})
"""Ops that leave a weight what it is."""

_SUMMED = frozenset({*ALIASES, "AddN", "AddV2", "Add", "Cast"})
_IN_PLACE = frozenset(
    {*UNARY, *LINEAR, *RISING, *FALLING, *BINARY, *SUMS, *PRODUCTS, *QUOTIENTS, *GRADIENT_FIRST, *GRADIENT_SECOND}
    | {"AddN", "BiasAdd", "Maximum", "Minimum", "SelectV2", "Softmax", "LogSoftmax"}
)


_Buffer = tuple[int, Layout]
"""A tensor in a layout."""


def find_peak(graph: LogicalGraph, plan: Plan, part: int = 0) -> Peak:
    """When a part of the mesh holds the most bytes, and of what.

    Loops count as if each op of their bodies ran once; of micro-batches it is the last one.

    Args:
      graph, plan: expanded, without stages.
    """
    return Liveness(graph, plan).peak(part)


class Liveness:
    """What is held when, for all parts of a mesh alike; `peak` says how much that is for one of them.

    Args:
      graph, plan: expanded, without stages, or a chunk's.
      taken: of a chunk, how many of the last inputs others give; None for a step. What a chunk is given and gives is in
        registers, and variables and arguments are there for all chunks: neither is counted.
      totals: of a chunk, the outputs that are added up over the micro-batches, which are in no register.
    """

    def __init__(self, graph: LogicalGraph, plan: Plan, taken: int | None = None, totals: Collection[int] = ()) -> None:
        self.graph, self.plan = graph, plan
        self.order, self.moves = ready_order(graph), find_moves(graph, plan)
        self.handles, self.given = graph.variable_of(), set(graph.inputs)
        self._host_handles = {variable.handle for variable in graph.variables if variable.on_host}
        self._chunk = taken is not None
        self._taken = set(graph.inputs[len(graph.inputs) - (taken or 0) :])
        self._totals = {graph.outputs[number] for number in totals}
        self._gradients = self._find_gradients()
        self._weights: set[int] = set()  # variables as they are read, and copies of that
        for op in graph.ops:
            own = [tensor for tensor in op.inputs if tensor not in graph.constants]
            copied = op.type in COPIES_OF_WEIGHTS and own and self._weights.issuperset(own)
            if op.type == "ReadVariableOp" or (copied and (op.phase == FORWARD or op.again)):
                self._weights.update(op.outputs)
        # With a loop all micro-batches run together.
        self._at_once = plan.mesh.micro_batches if len(graph.regions) > 1 else 1
        self._times = [number for number, axis in enumerate(plan.mesh.axes) if axis.time and axis.size > 1]
        self._place_of = {index: position for position, index in enumerate(self.order)}
        self._root: dict[_Buffer, _Buffer] = {}  # buffer -> the one whose memory it shares
        self._last: dict[_Buffer, int] = {}  # of those that have memory when they are last read
        self._made: list[list[_Buffer]] = [[] for _ in self.order]
        self._boxed: list[list[_Buffer]] = [[] for _ in self.order]
        self._follow()
        self._in_registers = {self._root[pair] for pair in self._outputs(totals)} if self._chunk else set()
        self._copied = self._find_copied()
        self._ends: list[list[_Buffer]] = [[] for _ in range(len(self.order) + 1)]
        for buffer, position in self._last.items():
            self._ends[position].append(buffer)

    def _find_gradients(self) -> set[int]:
        """What updates read, and the summands of that."""
        graph, found = self.graph, set(self._totals)
        for op in reversed(graph.ops):
            if op.phase == UPDATE or op.type == GRADIENT:
                found.update(op.inputs)
            elif op.phase == BACKWARD and op.type in _SUMMED and found.intersection(op.outputs):
                shape = graph.tensors[op.outputs[0]].shape
                found.update(tensor for tensor in op.inputs if graph.tensors[tensor].shape == shape)
        return found

    def peak(self, part: int = 0) -> Peak:
        """When a part holds the most."""
        graph, fixed = self.graph, [] if self._chunk else list(self._fixed(part))
        alive: dict[_Buffer, int] = {}
        total = best = on_host = 0
        most_on_host = 0
        at, then = -1, dict(alive)
        for position, index in enumerate(self.order):
            ending = [b for b in self._ends[position] if b in alive]
            for buffer in self._made[position]:
                nbytes = self._nbytes(buffer, part)
                if graph.ops[index].type in _IN_PLACE:  # written over an input of the same size
                    over = next((b for b in ending if b in alive and alive[b] == nbytes and nbytes), None)
                    if over is not None:
                        total -= alive.pop(over)
                alive[buffer] = nbytes
                total += nbytes
                on_host += self._host_bytes(buffer, part)
            for buffer in self._boxed[position]:
                if buffer not in alive:  # moves may share a total
                    alive[buffer] = self._nbytes(buffer, part)
                    total += alive[buffer]
            for buffer in self._copied.get(position, ()):
                if buffer not in self._in_registers:
                    alive[buffer] = self._local_bytes(buffer, part)
                    total += alive[buffer]
            if total > best:
                best, at, then = total, index, dict(alive)
            most_on_host = max(most_on_host, on_host)
            for buffer in self._ends[position]:
                if buffer in alive:
                    total -= alive.pop(buffer)
                    on_host -= self._host_bytes(buffer, part)
        held = [*fixed, *(self._held(buffer, nbytes) for buffer, nbytes in then.items() if nbytes)]
        nbytes = sum(each.nbytes for each in fixed) + best
        if not self._chunk:
            most_on_host += sum(each.nbytes for each in self._variables(part, on_host=True))
        return Peak(nbytes, at, tuple(sorted(held, key=lambda h: (-h.nbytes, h.tensor))), most_on_host)

    def given_bytes(self, number: int, part: int) -> int:
        """Bytes in the register for an output of a chunk; 0 for an argument, a variable, what another output shares.

        A variable that the chunk assigns to after it was read is a copy.
        """
        pairs = list(zip(self.graph.outputs, self.plan.outputs, strict=True))
        root = self._root[pairs[number]]
        if any(self._root[pair] == root for pair in pairs[:number]):
            return 0
        old = any(root in buffers for buffers in self._copied.values())
        own = root[0] in self.given - self._taken or root[0] in self.handles or (self._is_stored(root) and not old)
        return 0 if own or root[0] in self.graph.constants else self._local_bytes(root, part)

    def _follow(self) -> None:
        """Finds what is made when, what shares memory, and when each is last read."""
        graph, root, last = self.graph, self._root, self._last
        for (tensor, layout), move in self.moves.items():
            self._box(tensor, layout, move)
        for position, index in enumerate(self.order):
            op, choice = graph.ops[index], self.plan.choices[index]
            for pair in self._read(index):
                self._keep(pair, position)
            for pair in zip(op.outputs, choice.outputs, strict=True):
                source = (op.inputs[0], choice.inputs[0]) if op.inputs and op.type in ALIASES else pair
                root[pair] = root.get(source, pair)
                self._keep(pair, position)
                if root[pair] == pair:
                    self._made[position].append(pair)
        for pair in self._outputs(()):
            self._keep(pair, len(self.order))
        for pair, position in list(last.items()):
            if root[pair] != pair:  # a reader came before its alias was known: only in bodies of loops
                last[root[pair]] = max(position, last.pop(pair))

    def _box(self, tensor: int, layout: Layout, move: Move) -> None:
        """Notes that a tensor is boxed as soon as it is made; a total over micro-batches is there before."""
        position = self._place_of[self.graph.tensors[tensor].producer]
        target = (tensor, layout)
        self._root[target] = target
        total = self._total(tensor, move) if self._times else None
        if total is not None:
            self._root[tensor, total] = (tensor, total)
            self._boxed[0].append((tensor, total))
            self._keep((tensor, total), position)
        if total != layout:
            self._boxed[position].append(target)
        self._keep(target, position)

    def _total(self, tensor: int, move: Move) -> Layout | None:
        """The layout of what is put together over the micro-batches on the way of a move; None where nothing is."""
        crossing = [n for n in self._times if move.target[n].is_broadcast and not move.source[n].is_broadcast]
        if not crossing:
            return None
        shape = self.graph.tensors[tensor].shape
        route = find_route(self.plan.mesh, move.source, move.target, shape or (), 1.0) or ()
        joined = (hop.target for hop in route if all(hop.target[n].is_broadcast for n in crossing))
        return next(joined, None)

    def _keep(self, pair: _Buffer, position: int) -> None:
        own = self._root.setdefault(pair, pair)
        self._last[own] = max(position, self._last.get(own, 0))

    def _read(self, index: int) -> Iterator[_Buffer]:
        """What an op reads, in which layouts."""
        for pair in zip(self.graph.ops[index].inputs, self.plan.choices[index].inputs, strict=True):
            if pair[0] not in self.graph.constants:
                yield pair

    def _outputs(self, without: Collection[int]) -> Iterator[_Buffer]:
        for number, pair in enumerate(zip(self.graph.outputs, self.plan.outputs, strict=True)):
            if number not in without:
                yield pair

    def _find_copied(self) -> dict[int, list[_Buffer]]:
        """Position of an assignment -> what was read of the variable before and is read after."""
        reads: dict[int, list[_Buffer]] = {}
        copied: dict[int, list[_Buffer]] = {}
        effects = set(self.graph.effects)
        for position, index in enumerate(self.order):
            op, choice = self.graph.ops[index], self.plan.choices[index]
            if op.type == "ReadVariableOp":
                reads.setdefault(op.inputs[0], []).append((op.outputs[0], choice.outputs[0]))
            elif index in effects and op.type not in READS:
                for handle in (self.handles.keys() - self._host_handles) & set(op.inputs):
                    before = [pair for pair in reads.pop(handle, ()) if self._last.get(pair, 0) > position]
                    if before:
                        copied.setdefault(position, []).append(max(before, key=self._last.__getitem__))
        return copied

    def _nbytes(self, buffer: _Buffer, part: int) -> int:
        """What a buffer takes that is not there anyway."""
        tensor, layout = buffer
        spec = self.graph.tensors[tensor]
        if tensor in self.handles or tensor in self.graph.constants or buffer in self._in_registers:
            return 0
        arrived = tensor in self.given and layout == self.plan.choices[spec.producer].outputs[0]
        if arrived or self._is_stored(buffer) or self._waits_on_host(buffer):
            return 0
        return self._local_bytes(buffer, part)

    def _host_bytes(self, buffer: _Buffer, part: int) -> int:
        """What it takes of the host's memory, but for registers."""
        own = self._waits_on_host(buffer) and buffer not in self._in_registers
        return self._local_bytes(buffer, part) if own else 0

    def _waits_on_host(self, buffer: _Buffer) -> bool:
        return self.graph.ops[self.graph.tensors[buffer[0]].producer].type == TO_HOST

    def _is_stored(self, buffer: _Buffer) -> bool:
        """Whether it is a variable as it lies, on the device."""
        index = self.graph.tensors[buffer[0]].producer
        op = self.graph.ops[index]
        read = op.type == "ReadVariableOp" and op.inputs[0] not in self._host_handles
        return read and self.plan.choices[index].outputs[0] == buffer[1]

    def _local_bytes(self, buffer: _Buffer, part: int) -> int:
        tensor, layout = buffer
        spec = self.graph.tensors[tensor]
        if spec.shape is None or spec.dtype in ("resource", "variant"):
            return 0
        if self.graph.ops[spec.producer].type in CONTROL:
            return 0
        times = self._at_once if any(not layout[number].is_broadcast for number in self._times) else 1
        return layout_bytes(self.plan.mesh.local_shape(spec.shape, layout, part), spec.dtype) * times

    def _fixed(self, part: int) -> Iterator[Held]:
        """What is there all the time: variables, and the step's arguments."""
        yield from self._variables(part, on_host=False)
        space, place = self.plan.mesh.in_space.flat, self.plan.mesh.place(part)
        for tensor, layout in zip(self.graph.inputs, self.plan.inputs, strict=True):
            spec = self.graph.tensors[tensor]
            if spec.shape is not None:
                nbytes = layout_bytes(space.local_shape(spec.shape, layout, place), spec.dtype)
                yield Held(tensor, layout, nbytes, ARGUMENTS, self.graph.place(spec.producer))

    def _variables(self, part: int, on_host: bool) -> Iterator[Held]:
        space, place = self.plan.mesh.in_space, self.plan.mesh.place(part)
        for variable, (_, layout) in zip(self.graph.variables, self.plan.variables, strict=True):
            if variable.on_host == on_host:
                yield variable_held(variable, layout, space, place)

    def _held(self, buffer: _Buffer, nbytes: int) -> Held:
        tensor, layout = buffer
        producer = self.graph.tensors[tensor].producer
        place = self.graph.place(producer) + (OLD_VALUE if self._is_stored(buffer) else "")
        return Held(tensor, layout, nbytes, self._kind(tensor), place)

    def _kind(self, tensor: int) -> str:
        if tensor in self._weights:
            return GATHERED
        op = self.graph.ops[self.graph.tensors[tensor].producer]
        if tensor in self.given:
            taken = GRADIENTS if tensor in self._gradients else REGISTERS
            return taken if tensor in self._taken else ARGUMENTS
        backward = op.phase == BACKWARD and not op.again
        if op.type == GRADIENT or tensor in self._totals or (backward and tensor in self._gradients):
            return GRADIENTS
        return ACTIVATIONS if op.phase == FORWARD or op.again or op.type == TO_DEVICE else WORKSPACE
