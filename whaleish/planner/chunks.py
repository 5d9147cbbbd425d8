"""Chunks: a step with stages, cut into pieces that each run on one stage, and what they give each other.

     before            each micro-batch                   after
     ┌──────┐    ┌──────┐      ┌──────┐     sums       ┌──────┐
     │stage 0├──▶│  F0  ├─────▶│  F1  │ ┌────────────▶ │stage 0│      F and B hand on what they make of a micro-batch;
     └──────┘    └──┬───┘      └──┬───┘ │              └──────┘      what all of them are needed for is added up, or
                    ▼             ▼     │              ┌──────┐      joined, on the way
                 ┌──────┐      ┌──────┐ │  ┌─────────▶ │stage 1│
                 │  B0  │◀─────┤  B1  ├─┼──┘           └──────┘
                 └──┬───┘      └──────┘ │
                    └───────────────────┘

What runs once, before or after, may go to and fro between stages (a norm over all gradients): each time it crosses, a
further chunk begins.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from whaleish.graph import BACKWARD, LogicalGraph, Op, Variable
from whaleish.mesh import Mesh
from whaleish.planner.plan import Choice, Plan
from whaleish.planner.units import Units
from whaleish.rules.rows import MERGE_ROWS
from whaleish.runtime import AFTER, BEFORE, EACH
from whaleish.sbp import B, Layout

FORWARD_TURN, BACKWARD_TURN = 0, 1
_LETTERS = "FBW"


class Key(NamedTuple):
    """Which chunk: when it runs, where, and which of those it is.

    Attributes:
      phase: BEFORE, EACH or AFTER, as of actors.
      turn: of EACH, 0 for the forward, 1 for the backward; else how often data has crossed between stages before it.
    """

    phase: str
    stage: int
    turn: int = 0

    def __str__(self) -> str:
        if self.phase == EACH:
            return f"{_LETTERS[self.turn]}{self.stage}"
        return f"{self.phase} {self.stage}" + (f".{self.turn}" if self.turn else "")


class Give(NamedTuple):
    """Something that a chunk makes for others.

    Attributes:
      tensor: of the step's graph. layout: in which it is given.
      axis: None, or the axis of time over which all micro-batches' are put together: summands added up, pieces joined.
    """

    tensor: int
    layout: Layout
    axis: int | None = None

    @property
    def arrival(self) -> Layout:
        """The layout in which the reader has it."""
        if self.axis is None:
            return self.layout
        return (*self.layout[: self.axis], B, *self.layout[self.axis + 1 :])


@dataclass(frozen=True)
class Chunk:
    """Ops that one stage runs together.

    Attributes:
      arguments: which of the step's inputs are the first inputs of `graph`.
      takes: (chunk, which of its gives), in the order of its other inputs.
      gives: what others read, or the step returns: the outputs of `graph`.
      waits: chunks that must have run before, though nothing of theirs is read.
      graph, plan: the chunk as a step of its own, whose inputs arrive in the layouts of `plan.inputs` on `plan.mesh`.
    """

    key: Key
    arguments: tuple[int, ...]
    takes: tuple[tuple[Key, int], ...]
    gives: tuple[Give, ...]
    waits: tuple[Key, ...]
    graph: LogicalGraph
    plan: Plan


@dataclass
class _Draft:
    """A chunk of which not all is known yet.

    Attributes:
      ops: numbers in the step's graph.
    """

    key: Key
    ops: list[int] = field(default_factory=list)
    gives: list[Give] = field(default_factory=list)
    takes: list[tuple[Key, int]] = field(default_factory=list)
    arguments: list[int] = field(default_factory=list)
    waits: list[Key] = field(default_factory=list)


@dataclass(frozen=True)
class Chunks:
    """A step in chunks.

    Attributes:
      all: in an order in which a micro-batch may go through them.
      outputs: for each output of the step the chunk and the number of what it gives; None for a constant.
    """

    all: tuple[Chunk, ...]
    outputs: tuple[tuple[Key, int] | None, ...]


def cut(graph: LogicalGraph, plan: Plan) -> Chunks:
    """Cuts a step with stages into chunks."""
    return _Cutter(graph, plan).run()


class _Cutter:
    def __init__(self, graph: LogicalGraph, plan: Plan) -> None:
        self.time = next((number for number, axis in enumerate(plan.mesh.axes) if axis.time), None)
        plan = _merging_after(graph, plan, self.time)
        assert plan.pipelining is not None
        self.graph, self.plan, self.stages = graph, plan, plan.pipelining
        self.units = Units(graph)
        handles = {variable.handle for variable in graph.variables}
        self.idle = {
            index
            for index, op in enumerate(graph.ops)
            if op.type == "Placeholder" or (op.outputs and all(tensor in graph.constants for tensor in op.outputs))
        }
        self.handles, self.inputs = handles, {tensor: place for place, tensor in enumerate(graph.inputs)}
        self.made = {
            tensor: layout
            for op, choice in zip(graph.ops, plan.choices, strict=True)
            for tensor, layout in zip(op.outputs, choice.outputs, strict=True)
        }
        self.key_of: dict[int, Key] = {}  # of ops
        self.drafts: dict[Key, _Draft] = {}

    def run(self) -> Chunks:
        for unit in self.units.order:
            members = [index for index in self.units.members[unit] if index not in self.idle]
            if members:
                key = self._key(members)
                self.key_of.update(dict.fromkeys(members, key))
        for index in sorted(self.key_of):
            key = self.key_of[index]
            self.drafts.setdefault(key, _Draft(key)).ops.append(index)
        outputs = [self._output(tensor) for tensor in self.graph.outputs]
        for draft in list(self.drafts.values()):
            self._take(draft)
        # What is given is known when all have taken.
        order = {BEFORE: 0, EACH: 1, AFTER: 2}
        drafts = sorted(self.drafts.values(), key=lambda d: (order[d.key.phase], d.key.turn, self._along(d.key)))
        return Chunks(tuple(_build(self, draft) for draft in drafts), tuple(outputs))

    def _along(self, key: Key) -> int:
        return -key.stage if key.phase == EACH and key.turn else key.stage

    def _key(self, members: list[int]) -> Key:
        """The chunk of a unit, from those of what it depends on."""
        graph, stage = self.graph, self.stages.stage_of[members[0]]
        tensors = (tensor for index in members for tensor in graph.ops[index].inputs)
        producers = {graph.tensors[tensor].producer for tensor in tensors}
        controls = {control for index in members for control in graph.ops[index].controls}
        before = {self.key_of[index] for index in (producers | controls) - set(members) if index in self.key_of}
        if any(map(self._is_each, members)):
            backward = any(key.phase == EACH and key.turn == BACKWARD_TURN for key in before)
            backward |= any(graph.ops[index].phase == BACKWARD for index in members)
            return Key(EACH, stage, BACKWARD_TURN if backward else FORWARD_TURN)
        phase = AFTER if any(key.phase in (EACH, AFTER) for key in before) else BEFORE
        turns = [key.turn + (key.stage != stage) for key in before if key.phase == phase]
        return Key(phase, stage, max(turns, default=0))

    def _is_each(self, index: int) -> bool:
        """Whether an op runs for each micro-batch."""
        choice = self.plan.choices[index]
        return self.time is not None and any(
            not layout[self.time].is_broadcast for layout in (*choice.inputs, *choice.outputs)
        )

    def _output(self, tensor: int) -> tuple[Key, int] | None:
        """Who gives an output of the step: whole, so what is made for each micro-batch is given on after them."""
        if tensor in self.graph.constants:
            return None
        producer = self.graph.tensors[tensor].producer
        key = self.key_of.get(producer)
        if key is None:  # an argument of the step
            key = Key(BEFORE, self.stages.stage_of[producer])
        elif key.phase == EACH:
            key = Key(AFTER, key.stage)
        draft = self.drafts.setdefault(key, _Draft(key))
        return key, self._give(draft, Give(tensor, (B,) * len(self.plan.mesh.axes)))

    def _give(self, draft: _Draft, give: Give) -> int:
        if give not in draft.gives:
            draft.gives.append(give)
        return draft.gives.index(give)

    def _take(self, draft: _Draft) -> None:
        """Finds what a chunk reads of others, and has them give it."""
        own = {tensor for index in draft.ops for tensor in self.graph.ops[index].outputs}
        wanted = [tensor for index in draft.ops for tensor in self.graph.ops[index].inputs]
        wanted += [give.tensor for give in draft.gives]
        takes: dict[tuple[Key, int], None] = {}
        arguments: dict[int, None] = {}
        for tensor in dict.fromkeys(wanted):
            if tensor in own or tensor in self.handles or tensor in self.graph.constants:
                continue
            if tensor in self.inputs:
                arguments[self.inputs[tensor]] = None
                continue
            giver = self.drafts[self.key_of[self.graph.tensors[tensor].producer]]
            takes[giver.key, self._give(giver, self._given(tensor, giver.key, draft.key))] = None
        draft.takes, draft.arguments = list(takes), list(arguments)
        controls = {self.key_of.get(c) for index in draft.ops for c in self.graph.ops[index].controls}
        read = {key for key, _ in takes}
        draft.waits = sorted(key for key in controls - read - {draft.key, None} if key is not None)

    def _given(self, tensor: int, giver: Key, reader: Key) -> Give:
        """In which layout a tensor is handed over."""
        layout = self.made[tensor]
        if len(self.stages.meshes[giver.stage].devices) != len(self.stages.meshes[reader.stage].devices):
            # On another number of devices it lies otherwise: each of them gets the whole.
            layout = tuple(sbp if number == self.time else B for number, sbp in enumerate(layout))
        if self.time is None or giver.phase != EACH or reader.phase == EACH or layout[self.time].is_broadcast:
            return Give(tensor, layout)
        over = layout[self.time]
        if over.is_split:  # pieces can be joined where no axis further in cuts the same dim again
            layout = tuple(
                B if number > self.time and sbp.is_split and sbp.dim == over.dim else sbp
                for number, sbp in enumerate(layout)
            )
        return Give(tensor, layout, self.time)


def _merging_after(graph: LogicalGraph, plan: Plan, time: int | None) -> Plan:
    """The same plan, in which rows are merged when those of all micro-batches are there."""
    if time is None:
        return plan
    choices = list(plan.choices)
    for index, op in enumerate(graph.ops):
        if op.type == MERGE_ROWS:
            inputs, outputs, expands = choices[index]
            pairs = zip(inputs, outputs, strict=True)
            joined = tuple((*own[:time], made[time], *own[time + 1 :]) for own, made in pairs)
            choices[index] = Choice(joined, outputs, expands)
    return replace(plan, choices=tuple(choices))


def _build(cutter: _Cutter, draft: _Draft) -> Chunk:
    """Makes the graph and the plan of a draft."""
    graph, plan = cutter.graph, cutter.plan
    builder = _Builder(graph, plan)
    mesh = cutter.stages.meshes[draft.key.stage].in_turns
    whole = (B,) * len(mesh.axes)
    for place in draft.arguments:
        builder.argument(graph.inputs[place], whole)
    for key, number in draft.takes:
        give = cutter.drafts[key].gives[number]
        builder.argument(give.tensor, give.arrival)
    used = {tensor for index in draft.ops for tensor in graph.ops[index].inputs}
    given = {give.tensor for give in draft.gives}
    stored = dict(plan.variables)
    for variable in graph.variables:
        if variable.handle in used:
            builder.variable(variable, stored[variable.name], mesh)
    for tensor in sorted((used | given) & set(graph.constants)):
        builder.copy(graph.tensors[tensor].producer)
    for index in draft.ops:
        builder.copy(index)
    made = builder.graph
    made.outputs = tuple(builder.tensors[give.tensor] for give in draft.gives)
    made.effects = tuple(builder.ops[index] for index in draft.ops if index in set(graph.effects))
    own = replace(
        plan,
        mesh=mesh,
        inputs=tuple(builder.arrivals),
        outputs=tuple(give.layout for give in draft.gives),
        variables=tuple(builder.stored),
        choices=tuple(builder.choices),
        pipelining=None,
    )
    ends = tuple(draft.arguments), tuple(draft.takes), tuple(draft.gives), tuple(draft.waits)
    return Chunk(draft.key, *ends, made, own)


class _Builder:
    """Copies ops of one graph into another.

    Attributes:
      tensors, ops: number in the old graph -> in the new one.
    """

    def __init__(self, old: LogicalGraph, plan: Plan) -> None:
        self.old, self.plan = old, plan
        self.graph = LogicalGraph(scopes=old.scopes, regions=old.regions)
        self.tensors: dict[int, int] = {}
        self.ops: dict[int, int] = {}
        self.arrivals: list[Layout] = []
        self.stored: list[tuple[str, Layout]] = []
        self.choices: list[Choice] = []
        self._origin: dict[int, int] = {}
        self.graph.source = lambda index: old.source(self._origin[index]) if index in self._origin else ""

    def argument(self, tensor: int, layout: Layout) -> None:
        """A tensor that comes from elsewhere."""
        self._placeholder(tensor, layout)
        self.graph.inputs += (self.tensors[tensor],)
        self.arrivals.append(layout)

    def variable(self, variable: Variable, layout: Layout, mesh: Mesh) -> None:
        self._placeholder(variable.handle, mesh.at_all_times(layout))
        self.graph.variables += (replace(variable, handle=self.tensors[variable.handle]),)
        self.stored.append((variable.name, layout))

    def copy(self, index: int) -> None:
        """An op, reading what has been copied."""
        if index in self.ops:
            return
        op, choice = self.old.ops[index], self.plan.choices[index]
        constant = bool(op.outputs) and all(tensor in self.old.constants for tensor in op.outputs)
        self._add(
            op,
            inputs=() if constant else tuple(self.tensors[tensor] for tensor in op.inputs),
            controls=() if constant else tuple(self.ops[c] for c in op.controls if c in self.ops),
        )
        self.ops[index] = len(self.graph.ops) - 1
        self._origin[self.ops[index]] = index
        self.choices.append(choice._replace(inputs=()) if constant else choice)
        for tensor in op.outputs if constant else ():
            self.graph.constants[self.tensors[tensor]] = self.old.constants[tensor]

    def _placeholder(self, tensor: int, layout: Layout) -> None:
        producer = self.old.ops[self.old.tensors[tensor].producer]
        name = producer.name if producer.type == "Placeholder" else f"{producer.name}_{tensor}"
        self._add(Op(name, "Placeholder", (), (tensor,)), (), ())
        self.choices.append(Choice((), (layout,)))

    def _add(self, op: Op, inputs: Iterable[int], controls: Iterable[int]) -> None:
        outputs: list[int] = []
        for tensor in op.outputs:
            outputs.append(len(self.graph.tensors))
            self.tensors[tensor] = outputs[-1]
            spec = self.old.tensors[tensor]
            self.graph.tensors.append(replace(spec, producer=len(self.graph.ops), slot=len(outputs) - 1))
        self.graph.ops.append(replace(op, inputs=tuple(inputs), outputs=tuple(outputs), controls=tuple(controls)))
