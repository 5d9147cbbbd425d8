"""Offloading of activations: what the forward makes for the backward waits in the host's memory.

    forward    x ─▶ a ─▶ b ─▶ ... ─▶ loss        What the backward reads of `a` is a copy of a copy. It is fetched when
                    │                 │          the gradient has come as far as what is fetched AHEAD before: copying
                    ▼ ToHost          ▼          and computing go on at once, and few are on the device at a time.
                    ╎ ToDevice
    backward   dx ◀─┴──── dy ◀─ ... ──┘

What shares the memory of `a` (a reshape) is made of the fetched copy again. A tensor that the forward reads in another
layout, a gathered one say, is kept in that, so that the backward does not send it again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import prod

from whaleish.graph import BACKWARD, FORWARD, LogicalGraph, Op, Scope
from whaleish.offloading import ACTIVATIONS, STAYS_BELOW, offloading
from whaleish.passes.draft import Draft, renamed
from whaleish.passes.repeat import entering, last_of
from whaleish.passes.segments import late_readers, runs_once, that_can_be_waited_for
from whaleish.passes.stored import made_of_variables
from whaleish.planner.liveness import ALIASES, COPIES_OF_WEIGHTS
from whaleish.planner.plan import Choice, Plan
from whaleish.planner.roles import PlanError
from whaleish.rules.host import TO_DEVICE, TO_HOST
from whaleish.sbp import Layout

AHEAD = 2
"""How many tensors are fetched before they are read."""


@dataclass
class _Kept:
    """A tensor in a layout that waits for the backward.

    Attributes:
      scope: which asks for it, and the number of its path.
      reads: backward op -> tensor that it reads -> the ops, in order, by which that is the same memory as the one kept.
    """

    tensor: int
    layout: Layout
    scope: Scope
    path: int
    reads: dict[int, dict[int, tuple[int, ...]]] = field(default_factory=dict)


def offload_activations(graph: LogicalGraph, plan: Plan) -> tuple[LogicalGraph, Plan]:
    """The step with what the forward makes under `wh.offload()` on the host until the backward reads it.

    Args:
      graph, plan: not expanded. They stay as they are.

    Raises:
      PlanError: there are stages that run their forward again.
    """
    scope_of = [offloading(path, ACTIVATIONS) for path in graph.scopes]
    found = next(filter(None, scope_of), None)
    if found is None:
        return graph, plan
    if plan.pipelining is not None and plan.pipelining.recompute:
        raise PlanError(
            f"wh.offload(){graph.begin(found)} in a wh.pipeline(recompute=True): a stage that runs its forward again "
            'keeps no activations that could wait on the host. Take recompute=True away, or give wh.offload("slots")'
        )
    kept = sorted(_Finder(graph, plan, scope_of).run(), key=lambda each: min(each.reads))
    return _rewritten(graph, plan, kept) if kept else (graph, plan)


class _Finder:
    """Finds what the backward reads of what ops in scopes make."""

    def __init__(self, graph: LogicalGraph, plan: Plan, scope_of: Sequence[Scope | None]) -> None:
        self.graph, self.plan, self.scope_of = graph, plan, scope_of
        self.readers = graph.consumers()
        self.stored = made_of_variables(graph, COPIES_OF_WEIGHTS)

    def run(self) -> list[_Kept]:
        found: dict[tuple[int, Layout], _Kept] = {}
        for op in self.graph.ops:
            for tensor in op.outputs if op.phase == FORWARD and not op.region else ():
                for reader in self._late(tensor):
                    self._note(found, tensor, reader)
        return list(found.values())

    def _late(self, tensor: int) -> list[int]:
        """Who reads a tensor in the backward and after it, on the device that makes it."""
        late = late_readers(self.graph, set(self.readers[tensor]), copies=True)
        here = sorted(reader for reader in late if self._on_one_stage(reader, self.graph.tensors[tensor].producer))
        return here if any(self.graph.ops[r].phase == BACKWARD for r in here) else []

    def _note(self, found: dict[tuple[int, Layout], _Kept], tensor: int, reader: int) -> None:
        layout, chain = self._read_in(tensor, reader), list[int]()
        source, made = tensor, self._made_in(tensor)
        if layout == made or not self._boxed_before(tensor, layout):
            layout = made
            while (alias := self._alias(source, layout)) is not None:
                source = self.graph.ops[alias].inputs[0]
                layout = self.plan.choices[alias].inputs[0]
                chain.append(alias)
        path = self.graph.ops[self.graph.tensors[source].producer].scope
        scope = self.scope_of[path]
        if scope is not None and self._may_go(source, layout):
            kept = found.setdefault((source, layout), _Kept(source, layout, scope, path))
            kept.reads.setdefault(reader, {})[tensor] = tuple(reversed(chain))

    def _alias(self, tensor: int, layout: Layout) -> int | None:
        """The op that makes a tensor of another one's memory, as that was made."""
        index = self.graph.tensors[tensor].producer
        op, choice = self.graph.ops[index], self.plan.choices[index]
        if op.type not in ALIASES or op.phase != FORWARD or op.region or layout != choice.outputs[0]:
            return None
        same = choice.inputs[0] == self._made_in(op.inputs[0]) and not choice.expands
        return index if same and self._on_one_stage(index, self.graph.tensors[op.inputs[0]].producer) else None

    def _on_one_stage(self, one: int, other: int) -> bool:
        stages = self.plan.pipelining
        return stages is None or stages.stage_of[one] == stages.stage_of[other]

    def _read_in(self, tensor: int, reader: int) -> Layout:
        return self.plan.choices[reader].inputs[self.graph.ops[reader].inputs.index(tensor)]

    def _made_in(self, tensor: int) -> Layout:
        spec = self.graph.tensors[tensor]
        return self.plan.choices[spec.producer].outputs[spec.slot]

    def _boxed_before(self, tensor: int, layout: Layout) -> bool:
        """Whether the forward, too, reads a tensor in a layout."""
        own = (r for r in self.readers[tensor] if self.graph.ops[r].phase == FORWARD)
        return any(self._read_in(tensor, reader) == layout for reader in own)

    def _may_go(self, tensor: int, layout: Layout) -> bool:
        graph, spec = self.graph, self.graph.tensors[tensor]
        op = graph.ops[spec.producer]
        return (
            spec.shape is not None
            and spec.dtype not in ("resource", "variant", "string")
            and prod(spec.shape) >= STAYS_BELOW
            and op.type != "Placeholder"
            and op.phase == FORWARD
            and not op.region
            and tensor not in graph.constants
            and tensor not in graph.outputs
            and tensor not in self.stored
            and not runs_once(self.plan, Choice((layout,), (layout,)))
        )


def _rewritten(graph: LogicalGraph, plan: Plan, kept: Sequence[_Kept]) -> tuple[LogicalGraph, Plan]:
    """The graph with the copies in it; `kept` is in the order in which it is read."""
    draft = Draft(graph)
    behind: dict[int, list[_Kept]] = {}
    before: dict[int, list[tuple[_Kept, tuple[int, ...]]]] = {}
    ends = {scope: _ends(graph, scope) for scope in {each.scope for each in kept}}
    for place, each in enumerate(kept):
        behind.setdefault(graph.tensors[each.tensor].producer, []).append(each)
        waits = _waits(graph, plan, each, kept[max(0, place - AHEAD)], ends[each.scope])
        before.setdefault(min(each.reads), []).append((each, waits))
    on_host: dict[int, int] = {}
    instead: dict[int, dict[int, int]] = {}  # reader -> tensor -> what it reads in its place
    for index, op in enumerate(graph.ops):
        for each, waits in before.get(index, ()):
            _fetch(draft, each, on_host[id(each)], waits, instead)
        draft.keep(index, replace(op, inputs=renamed(op.inputs, instead.get(index, {}))))
        for each in behind.get(index, ()):
            (made,) = draft.tensors_like([each.tensor])
            on_host[id(each)] = made
            copy = Op(f"{op.name}/{TO_HOST}", TO_HOST, (each.tensor,), (made,), scope=each.path)
            draft.put(copy, index, Choice((each.layout,), (each.layout,)))
    written, _ = draft.finish()
    return written, draft.plan(plan)


def _fetch(draft: Draft, kept: _Kept, on_host: int, waits: tuple[int, ...], instead: dict[int, dict[int, int]]) -> None:
    """Puts the copy back to the device, and what shares its memory."""
    graph = draft.graph
    producer = graph.tensors[kept.tensor].producer
    (fetched,) = draft.tensors_like([kept.tensor])
    name, choice = f"{graph.ops[producer].name}/{TO_DEVICE}", Choice((kept.layout,), (kept.layout,))
    draft.put(Op(name, TO_DEVICE, (on_host,), (fetched,), waits, phase=BACKWARD, scope=kept.path), producer, choice)
    again = {kept.tensor: fetched}
    for reader, tensors in kept.reads.items():
        for tensor, chain in tensors.items():
            for index in chain:
                op = graph.ops[index]
                if op.outputs[0] not in again:
                    outputs = draft.tensors_like(op.outputs)
                    made = replace(op, inputs=renamed(op.inputs, again), outputs=outputs, phase=BACKWARD)
                    draft.put(made, index)
                    again[op.outputs[0]] = outputs[0]
            instead.setdefault(reader, {})[tensor] = again[tensor]


def _waits(graph: LogicalGraph, plan: Plan, kept: _Kept, ahead: _Kept, ends: Sequence[int]) -> tuple[int, ...]:
    """What says that the backward has come as far as what is read before, and that the scope's forward has ended."""
    copies = {control for reader in ahead.reads for control in graph.ops[reader].controls if graph.ops[reader].again}
    arrived = {index for index in {*entering(graph, ahead.reads), *copies, *ends} if index < min(kept.reads)}
    return tuple(sorted(that_can_be_waited_for(graph, plan, arrived, graph.tensors[kept.tensor].producer)))


def _ends(graph: LogicalGraph, scope: Scope) -> list[int]:
    """The ops with which the forward in a scope ends."""
    own = [
        index
        for index, op in enumerate(graph.ops)
        if op.phase == FORWARD and scope in graph.scopes[op.scope] and op.outputs and not graph.is_constant(index)
    ]
    return last_of(graph, own, own[-1] + 1)
