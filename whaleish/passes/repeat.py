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

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from whaleish.graph import BACKWARD, LogicalGraph
from whaleish.passes.draft import Draft, renamed


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
    """Writes the new graph."""

    def __init__(self, graph: LogicalGraph, repeats: Sequence[Repeat]) -> None:
        self.graph, self.repeats = graph, repeats
        self.draft = Draft(graph)
        self.copies: set[int] = set()

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
            self.draft.keep(index, replace(op, inputs=renamed(op.inputs, instead.get(index, {}))))
        self._drop_unread()
        return self.draft.finish()

    def _copy(self, number: int, each: Repeat, position: int) -> dict[int, int]:
        """Copies before op `position`; returns old tensor -> the copies' one."""
        made: dict[int, int] = {}
        waits = tuple(index for index in sorted(each.waits) if index < position)
        for index in sorted(each.ops):
            op = self.graph.ops[index]
            begins = made.keys().isdisjoint(op.inputs)
            outputs = self.draft.tensors_like(op.outputs)
            copy = replace(
                op,
                inputs=renamed(op.inputs, made),
                outputs=outputs,
                controls=tuple(dict.fromkeys((*op.controls, *(waits if begins else ())))),
                phase=BACKWARD,
                again=number,
            )
            made.update(zip(op.outputs, outputs, strict=True))
            self.copies.add(self.draft.put(copy, index))
        return made

    def _drop_unread(self) -> None:
        """Takes out the copies and the repeated ops that nobody needs."""
        ops = self.draft.ops
        may_go = self.copies.union(*(each.ops for each in self.repeats))
        read = set(self.graph.outputs)
        waited = set(self.graph.effects)
        for number in reversed(list(ops)):
            op = ops[number]
            if number in may_go and number not in waited and read.isdisjoint(op.outputs):
                del ops[number]
            else:
                read.update(op.inputs)
                waited.update(op.controls)
