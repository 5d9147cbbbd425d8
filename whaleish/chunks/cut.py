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

from dataclasses import dataclass, field, replace

from whaleish.chunks.again import made_again
from whaleish.chunks.chunk import BACKWARD_TURN, WEIGHT_TURN, Chunk, Chunks, Give, Key
from whaleish.chunks.keys import Keys
from whaleish.chunks.subgraph import Subgraph
from whaleish.graph import LogicalGraph
from whaleish.planner.plan import Choice, Plan
from whaleish.planner.units import Units
from whaleish.rules.rows import MERGE_ROWS
from whaleish.runtime import AFTER, BEFORE, EACH
from whaleish.sbp import B, Layout


def cut(graph: LogicalGraph, plan: Plan) -> Chunks:
    """Cuts a step with stages into chunks."""
    return _Cutter(graph, plan).run()


@dataclass
class _Draft:
    """A chunk of which not all is known yet.

    Attributes:
      ops: numbers in the step's graph. again: those of them that another chunk has too.
    """

    key: Key
    ops: list[int] = field(default_factory=list)
    gives: list[Give] = field(default_factory=list)
    takes: list[tuple[Key, int]] = field(default_factory=list)
    arguments: list[int] = field(default_factory=list)
    waits: list[Key] = field(default_factory=list)
    again: set[int] = field(default_factory=set)


class _Cutter:
    def __init__(self, graph: LogicalGraph, plan: Plan) -> None:
        self.time = next((number for number, axis in enumerate(plan.mesh.axes) if axis.time), None)
        plan = _merging_after(graph, plan, self.time)
        assert plan.pipelining is not None
        self.graph, self.plan, self.stages = graph, plan, plan.pipelining
        self.units, self.effects = Units(graph), frozenset(graph.effects)
        self.keys = Keys(graph, plan, self.units, self.time)
        self.handles = {variable.handle for variable in graph.variables}
        self.inputs = {tensor: place for place, tensor in enumerate(graph.inputs)}
        self.drafts: dict[Key, _Draft] = {}
        self.needs: dict[Key, dict[int, set[Layout]]] = {}

    def run(self) -> Chunks:
        for index in sorted(self.keys.of):
            key = self.keys.of[index]
            self.drafts.setdefault(key, _Draft(key)).ops.append(index)
        outputs = [self._output(tensor) for tensor in self.graph.outputs]
        if self.stages.recompute:
            self._recompute()
        for draft in list(self.drafts.values()):
            self._take(draft)
        # What is given is known when all have taken.
        order = {BEFORE: 0, EACH: 1, AFTER: 2}
        drafts = sorted(self.drafts.values(), key=lambda d: (order[d.key.phase], d.key.turn, self._along(d.key)))
        return Chunks(tuple(map(self._build, drafts)), tuple(outputs))

    def _along(self, key: Key) -> int:
        return -key.stage if key.phase == EACH and key.turn else key.stage

    def _recompute(self) -> None:
        """Has the first chunk of a stage's backward run the forward again, also for the weight gradients after it."""
        for stage in range(len(self.stages.meshes)):
            turns = (self.drafts.get(Key(EACH, stage, turn)) for turn in (BACKWARD_TURN, WEIGHT_TURN))
            drafts = [draft for draft in turns if draft is not None]
            readers = [index for draft in drafts for index in draft.ops]
            for draft in drafts[:1]:
                draft.again = made_again(self.graph, self.units, self.keys, stage, readers)
                draft.ops = sorted({*draft.ops, *draft.again})

    def _output(self, tensor: int) -> tuple[Key, int] | None:
        """Who gives an output of the step: whole, so what is made for each micro-batch is given on after them."""
        if tensor in self.graph.constants:
            return None
        producer = self.graph.tensors[tensor].producer
        key = self.keys.of.get(producer)
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
            giver = self._giver(draft, self.graph.tensors[tensor].producer)
            give = self._given(tensor, giver.key, draft.key)
            before = self._boxed_before(draft, give) if draft.key.phase != EACH else None
            giver, give = before or (giver, give)
            takes[giver.key, self._give(giver, give)] = None
        draft.takes, draft.arguments = list(takes), list(arguments)
        controls = {self.keys.of.get(c) for index in draft.ops for c in self.keys.waits_for(index)}
        read = {key for key, _ in takes}
        draft.waits = sorted(key for key in controls - read - {draft.key, None} if key is not None)

    def _boxed_before(self, draft: _Draft, give: Give) -> tuple[_Draft, Give] | None:
        """Who on the same stage has boxed a tensor before as a chunk needs it, so that it need not do it again."""
        needs = self._needs(draft).get(give.tensor, set())
        if len(needs) != 1 or give.arrival in needs:
            return None
        (need,), (phase, stage, turn) = needs, draft.key
        earlier = (self.drafts.get(Key(phase, stage, number)) for number in range(turn))
        for other in filter(None, earlier):
            if need in self._needs(other).get(give.tensor, ()):
                return other, Give(give.tensor, need)
        return None

    def _needs(self, draft: _Draft) -> dict[int, set[Layout]]:
        """The layouts in which the ops of a chunk read each tensor."""
        if draft.key not in self.needs:
            found = self.needs[draft.key] = {}
            for index in draft.ops:
                op, choice = self.graph.ops[index], self.plan.choices[index]
                for tensor, layout in zip(op.inputs, choice.inputs, strict=True):
                    found.setdefault(tensor, set()).add(layout)
        return self.needs[draft.key]

    def _giver(self, draft: _Draft, producer: int) -> _Draft:
        """Who gives what an op makes: the chunk that it is in, or for weight gradients one that ran it again."""
        if draft.key.phase == EACH and draft.key.turn == WEIGHT_TURN:
            backward = self.drafts.get(draft.key._replace(turn=BACKWARD_TURN))
            if backward is not None and producer in backward.again:
                return backward
        return self.drafts[self.keys.of[producer]]

    def _given(self, tensor: int, giver: Key, reader: Key) -> Give:
        """In which layout a tensor is handed over."""
        layout = self.keys.made[tensor]
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

    def _build(self, draft: _Draft) -> Chunk:
        """The chunk, with its graph and its plan."""
        graph, plan = self.graph, self.plan
        builder = Subgraph(graph, plan)
        mesh = self.stages.meshes[draft.key.stage].in_turns
        whole = (B,) * len(mesh.axes)
        for place in draft.arguments:
            builder.argument(graph.inputs[place], whole)
        for key, number in draft.takes:
            give = self.drafts[key].gives[number]
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
        made.effects = tuple(builder.ops[index] for index in draft.ops if index in self.effects)
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
