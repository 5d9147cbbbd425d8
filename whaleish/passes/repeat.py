"""Repeats: ops that run once more, late, so that nobody has to keep until then what they made first.

    forward    x ─▶ a ─▶ b ─▶ y ─▶ ... ─▶ loss       `a` and `b` are not kept: the backward reads `a'` and `b'`,
               │                            │        which are made of `x` when the gradient of `y` has arrived
               └──▶ a' ─▶ b'                ▼
    backward   dx ◀─┴─────┴───── dy ◀─ ... ─┘

A copy is the same op on the same inputs, so a plan's choice for an op is that of its copies too (`follow`): a plan is
made once, without them. TensorFlow would merge a copy with its original again; `Op.again` tells them apart, also in
what is emitted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from whaleish.graph import BACKWARD, LogicalGraph, Op, Tensor
from whaleish.planner.plan import Plan


@dataclass(frozen=True)
class Repeat:
    """Some ops that run again, together. Ops are given by their numbers in the graph.

    Attributes:
      ops: which run again. They have no effects and are in no loop or condition.
      readers: the ops that read what is made then, where they read what was made first.
      waits: what must have run before any of it begins; what comes after the first reader is not waited for.
    """

    ops: tuple[int, ...]
    readers: tuple[int, ...]
    waits: tuple[int, ...] = ()


def repeat(graph: LogicalGraph, repeats: Sequence[Repeat]) -> tuple[LogicalGraph, list[int]]:
    """A graph in which ops run again. The given one stays as it is.

    The copies of a `Repeat` stand right before the first op that reads any of them. They are of the backward, in the
    scopes of their originals, and wait for what their originals wait for. Those that read no other copy wait for
    `waits` too. Originals that nobody reads any more go, and so do copies that nobody reads.

    Returns:
      The graph, and for each of its ops the number of the op in the given graph that it is, or is a copy of.
    """
    return _Repeater(graph, repeats).run()


def follow(plan: Plan, origin: Sequence[int]) -> Plan:
    """The plan for what `repeat` returned: a copy is carried out as its original is."""
    stages = plan.pipelining
    if stages is not None:
        stages = replace(stages, stage_of=tuple(stages.stage_of[index] for index in origin))
    return replace(plan, choices=tuple(plan.choices[index] for index in origin), pipelining=stages)


def entering(graph: LogicalGraph, readers: Collection[int]) -> list[int]:
    """The backward ops whose results come in where some ops, the readers, and what follows from them, go on.

    They are what a copy that the readers read has to wait for: with them the backward has arrived. Of those that follow
    from each other only the last are given, and only those before the first reader.
    """
    if not readers:
        return []
    first, last = min(readers), max(readers)
    behind: set[int] = set()
    found: set[int] = set()
    for index in range(first, last + 1):
        producers = {graph.tensors[tensor].producer for tensor in graph.ops[index].inputs}
        if index in readers or producers & behind:
            behind.add(index)
            found |= {producer for producer in producers if producer < first and _is_gradient(graph, producer)}
    return last_of(graph, found, first)


def last_of(graph: LogicalGraph, ops: Collection[int], end: int) -> list[int]:
    """Those of some ops that no other of them depends on; all are before op `end`."""
    needed: set[int] = set()
    for index in range(end - 1, min(ops, default=end) - 1, -1):
        if index in ops or index in needed:
            op = graph.ops[index]
            needed.update(op.controls)
            needed.update(graph.tensors[tensor].producer for tensor in op.inputs)
    return sorted(set(ops) - needed)


def _is_gradient(graph: LogicalGraph, index: int) -> bool:
    op = graph.ops[index]
    return op.phase == BACKWARD and not op.again and not op.region and not graph.is_constant(index)


class _Repeater:
    """Writes the new graph. Until it is numbered anew its tensors and ops have the old numbers, copies further ones."""

    def __init__(self, graph: LogicalGraph, repeats: Sequence[Repeat]) -> None:
        self.graph, self.repeats = graph, repeats
        self.specs = list(graph.tensors)
        self.ops: dict[int, Op] = {}  # in the new order
        self.origin: dict[int, int] = {}
        self.copies: set[int] = set()
        self.count = len(graph.ops)

    def run(self) -> tuple[LogicalGraph, list[int]]:
        first = 1 + max((op.again for op in self.graph.ops), default=0)
        at: dict[int, list[tuple[int, Repeat]]] = {}
        for number, each in enumerate(self.repeats, first):
            made = {tensor for index in each.ops for tensor in self.graph.ops[index].outputs}
            reading = [index for index in each.readers if not made.isdisjoint(self.graph.ops[index].inputs)]
            if reading:
                at.setdefault(min(reading), []).append((number, each))
        instead: dict[int, dict[int, int]] = {}  # reader -> tensor -> what it reads in its place
        for index, op in enumerate(self.graph.ops):
            for number, each in at.get(index, ()):
                made_again = self._copy(number, each, index)
                for reader in each.readers:
                    instead.setdefault(reader, {}).update(made_again)
            self._put(index, replace(op, inputs=_renamed(op.inputs, instead.get(index, {}))), index)
        self._drop_unread()
        return self._numbered()

    def _copy(self, number: int, each: Repeat, position: int) -> dict[int, int]:
        """Copies before op `position`; returns old tensor -> the copies' one."""
        made: dict[int, int] = {}
        waits = tuple(index for index in sorted(each.waits) if index < position)
        for index in sorted(each.ops):
            op = self.graph.ops[index]
            begins = made.keys().isdisjoint(op.inputs)
            outputs = tuple(range(len(self.specs), len(self.specs) + len(op.outputs)))
            self.specs += [self.graph.tensors[tensor] for tensor in op.outputs]
            copy = replace(
                op,
                inputs=_renamed(op.inputs, made),
                outputs=outputs,
                controls=tuple(dict.fromkeys((*op.controls, *(waits if begins else ())))),
                phase=BACKWARD,
                again=number,
            )
            made.update(zip(op.outputs, outputs, strict=True))
            self.copies.add(self.count)
            self._put(self.count, copy, index)
            self.count += 1
        return made

    def _put(self, number: int, op: Op, origin: int) -> None:
        self.ops[number], self.origin[number] = op, origin

    def _drop_unread(self) -> None:
        """Takes out the copies and the repeated ops that nobody needs."""
        may_go = self.copies.union(*(each.ops for each in self.repeats))
        read = set(self.graph.outputs)
        waited = set(self.graph.effects)
        for number in reversed(list(self.ops)):
            op = self.ops[number]
            if number in may_go and number not in waited and read.isdisjoint(op.outputs):
                del self.ops[number]
            else:
                read.update(op.inputs)
                waited.update(op.controls)

    def _numbered(self) -> tuple[LogicalGraph, list[int]]:
        old = self.graph
        place = {number: position for position, number in enumerate(self.ops)}
        tensors: list[Tensor] = []
        name: dict[int, int] = {}
        for position, op in enumerate(self.ops.values()):
            for tensor in op.outputs:
                name[tensor] = len(tensors)
                tensors.append(replace(self.specs[tensor], producer=position))
        ops = [
            replace(
                op,
                inputs=_renamed(op.inputs, name),
                outputs=_renamed(op.outputs, name),
                controls=tuple(place[control] for control in op.controls),
            )
            for op in self.ops.values()
        ]
        origin = [self.origin[number] for number in self.ops]
        made = LogicalGraph(
            ops=ops,
            tensors=tensors,
            inputs=_renamed(old.inputs, name),
            outputs=_renamed(old.outputs, name),
            variables=tuple(replace(variable, handle=name[variable.handle]) for variable in old.variables),
            constants={name[tensor]: value for tensor, value in old.constants.items() if tensor in name},
            scopes=list(old.scopes),
            regions=list(old.regions),
            effects=tuple(place[index] for index in old.effects),
            source=lambda index: old.source(origin[index]) if index < len(origin) else "",
        )
        return made, origin


def _renamed(tensors: Iterable[int], names: Mapping[int, int]) -> tuple[int, ...]:
    return tuple(names.get(tensor, tensor) for tensor in tensors)
