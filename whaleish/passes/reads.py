"""Reads of weights in pieces that are gathered, those of `replica(zero=3)` above all: a little ahead, and twice.

    forward     read 1 ─▶ use 1    read 2 ─▶ use 2    read 3 ─▶ use 3 ...     A read waits for what the use AHEAD before
    backward    ... use 3 ◀─ read 3'    use 2 ◀─ read 2'    use 1 ◀─ read 1'   it is given.

So few weights are whole at a time: those in use, and the next ones, which are gathered meanwhile. A read by itself
waits for nothing: all weights would be gathered at the beginning, and kept for the backward pass. The last to be used
in the forward pass are the first in the backward pass, and are kept.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace

from whaleish.graph import BACKWARD, FORWARD, LogicalGraph
from whaleish.passes.draft import follow
from whaleish.passes.repeat import Repeat, repeat
from whaleish.planner.plan import Plan
from whaleish.rules.variables import READS

AHEAD = 2
"""How many weights are gathered before they are used."""


@dataclass
class _Read:
    """A read of a variable that is gathered.

    Attributes:
      chain: the read, and the ops that depend on it alone and work on pieces (a cast), in order.
      forward, backward: the ops for which it is gathered, in order.
    """

    chain: list[int]
    forward: list[int] = field(default_factory=list)
    backward: list[int] = field(default_factory=list)


def time_reads(graph: LogicalGraph, plan: Plan) -> tuple[LogicalGraph, Plan]:
    """The step with its reads of gathered variables in time, and again for the backward pass.

    With micro-batches or stages nothing is changed: there a weight is gathered once for all that a function does. What
    assigns to a variable has still to wait for the reads that are put before it: see `assign_late`.

    Args:
      graph, plan: not expanded. They stay as they are.
    """
    if plan.pipelining or any(axis.time for axis in plan.mesh.axes):
        return graph, plan
    reads = list(_find(graph, plan))
    if not reads:
        return graph, plan
    forward = sorted((read for read in reads if read.forward), key=lambda read: read.forward[0])
    backward = sorted((read for read in reads if read.backward), key=lambda read: read.backward[0])
    kept = {id(read) for read in forward[-AHEAD:]}
    chains = {index for read in reads for index in read.chain}
    repeats = [
        Repeat(
            tuple(read.chain), tuple(read.backward), _given(graph, backward[max(0, place - AHEAD)].backward[0], chains)
        )
        for place, read in enumerate(backward)
        if id(read) not in kept and _may_read_again(graph, read)
    ]
    waits = {
        read.chain[0]: _given(graph, before.forward[0], chains)
        for before, read in zip(forward, forward[AHEAD:], strict=False)
    }
    again, origin = repeat(_waiting(graph, waits), repeats)
    return again, follow(plan, origin)


def _find(graph: LogicalGraph, plan: Plan) -> Iterator[_Read]:
    readers = graph.consumers()
    for index, op in enumerate(graph.ops):
        if op.type != "ReadVariableOp" or op.phase != FORWARD or op.region or not _in_pieces(plan, index):
            continue
        read, made, todo = _Read([index]), {*op.outputs}, [*op.outputs]
        while todo:
            tensor = todo.pop()
            for user in sorted(set(readers[tensor])):
                other = graph.ops[user]
                if _need(graph, plan, user, tensor) != plan.choices[graph.tensors[tensor].producer].outputs[0]:
                    {FORWARD: read.forward, BACKWARD: read.backward}.get(other.phase, []).append(user)
                elif other.phase == FORWARD and not other.region and _follows(graph, user, made):
                    read.chain.append(user)
                    made.update(other.outputs)
                    todo += other.outputs
        if read.forward or read.backward:
            yield _Read(sorted(read.chain), sorted(set(read.forward)), sorted(set(read.backward)))


def _follows(graph: LogicalGraph, index: int, tensors: Collection[int]) -> bool:
    """Whether an op makes one thing of some tensors alone."""
    op = graph.ops[index]
    return len(op.outputs) == 1 and all(t in tensors or t in graph.constants for t in op.inputs)


def _in_pieces(plan: Plan, index: int) -> bool:
    return any(sbp.is_split for sbp in plan.choices[index].outputs[0])


def _need(graph: LogicalGraph, plan: Plan, op: int, tensor: int) -> object:
    return plan.choices[op].inputs[graph.ops[op].inputs.index(tensor)]


def _given(graph: LogicalGraph, use: int, weights: Collection[int]) -> tuple[int, ...]:
    """The ops that make what a weight is used with; `weights`: those that read weights."""
    makers = {graph.tensors[t].producer for t in graph.ops[use].inputs if t not in graph.constants}
    ops = graph.ops
    return tuple(m for m in sorted(makers - set(weights)) if ops[m].type != "Placeholder" and not ops[m].region)


def _may_read_again(graph: LogicalGraph, read: _Read) -> bool:
    """Whether the variable is the same when the backward pass reads it: nothing is assigned to it before."""
    handle = graph.ops[read.chain[0]].inputs[0]
    between = graph.ops[read.chain[0] + 1 : read.backward[0]]
    inside = any(graph.ops[index].region for index in read.backward)
    return not inside and not any(handle in op.inputs and op.type not in READS for op in between)


def _waiting(graph: LogicalGraph, waits: dict[int, tuple[int, ...]]) -> LogicalGraph:
    """The graph with ops waiting for others, as far as those come before them."""
    ops = list(graph.ops)
    for index, others in waits.items():
        earlier = {other for other in others if other < index}
        ops[index] = replace(ops[index], controls=tuple(sorted({*ops[index].controls, *earlier})))
    return replace(graph, ops=ops)
