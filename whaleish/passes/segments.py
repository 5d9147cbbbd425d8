"""Segments: the parts of a forward whose results are made again for the backward in place of being kept."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from math import prod

from whaleish.graph import BACKWARD, FORWARD, LogicalGraph, Scope, layout_bytes
from whaleish.passes.repeat import Repeat, entering, last_of
from whaleish.planner.plan import Choice, Plan
from whaleish.rules.control import CONTROL
from whaleish.rules.whole import DRAWS

RECOMPUTE = "recompute"

_LITTLE = 256
"""What is made of so many times as many elements is kept: that is cheaper than to reduce them again."""


@dataclass(frozen=True)
class Segment:
    """Ops of the forward, or copies of such, that are made again together.

    Attributes:
      scope: the entering of `wh.recompute()`; None for one that was found by itself.
      ops: in the order of the graph.
    """

    scope: Scope | None
    ops: tuple[int, ...]


def find_segments(graph: LogicalGraph, plan: Plan, level: int, latest: Collection[int]) -> list[Segment]:
    """The segments of the recompute scopes that are inside `level` others.

    Ops of one entering on different stages are segments of their own, and so is what data that has left a segment comes
    back to: a model that is called twice is two.

    Args:
      latest: the ops to look among: those of the forward, or within other segments their copies.
    """
    stage_of = plan.pipelining.stage_of if plan.pipelining else None
    scope_of = [_at_level(path, level) for path in graph.scopes]
    found: dict[tuple[Scope, int], list[int]] = {}
    for index in sorted(latest):
        scope = scope_of[graph.ops[index].scope]
        if scope is not None:
            found.setdefault((scope, stage_of[index] if stage_of else 0), []).append(index)
    return [Segment(scope, ops) for (scope, _), members in found.items() for ops in _in_one_go(graph, members)]


def repeat_of(graph: LogicalGraph, plan: Plan, segment: Segment, readers: Sequence[Sequence[int]]) -> Repeat:
    """What of a segment is made again, for whom, and after what; without ops where nothing is.

    Made again is what only ops of the segment and of the backward read. Kept is what leaves the segment, and what is
    made by ops that cannot run again, or of many times as many elements.

    Args:
      readers: for each tensor the ops that read it.
    """
    members = set(segment.ops)
    made = [tensor for index in segment.ops for tensor in graph.ops[index].outputs]
    late = late_readers(graph, {reader for tensor in made for reader in readers[tensor]} - members)
    first = min(late, default=0)
    may = {
        tensor
        for tensor in made
        if graph.tensors[tensor].producer
        < first  # what comes later, a rate of the update say, may need what comes between
        and late.issuperset(r for r in readers[tensor] if r not in members)
        and tensor not in graph.outputs
        and _can_repeat(graph, plan, graph.tensors[tensor].producer)
    }
    late = {r for tensor in may for r in readers[tensor] if r not in members}
    todo = [tensor for tensor in may if any(r not in members for r in readers[tensor])]
    ops: set[int] = set()
    while todo:
        index = graph.tensors[todo.pop()].producer
        if index not in ops:
            ops.add(index)
            todo += [tensor for tensor in graph.ops[index].inputs if tensor in may]
    return Repeat(tuple(sorted(ops)), tuple(sorted(late)), _waits(graph, plan, segment, ops, late) if ops else ())


def in_turn(graph: LogicalGraph, plan: Plan, repeats: Sequence[Repeat]) -> list[Repeat]:
    """Repeats each of which also waits for the readers of the one before, so that no two hold what they make at once.

    TensorFlow would go on with the gradient that earlier segments wait for, and leave those of weights for later.
    """
    ordered = sorted(repeats, key=lambda each: min(each.readers))
    found = ordered[:1]
    for before, each in itertools.pairwise(ordered):
        first = min(each.readers)
        own = [index for index in before.readers if index < first]
        waits = that_can_be_waited_for(graph, plan, last_of(graph, own, first), each.ops[0])
        found.append(replace(each, waits=(*each.waits, *waits)))
    return found


def late_readers(graph: LogicalGraph, readers: Collection[int], copies: bool = False) -> set[int]:
    """Those of some ops that come with the backward, outside of loops: what they read can be made again for them.

    Args:
      copies: whether those that are themselves made again count.
    """
    ops = graph.ops
    late = {
        index
        for index in readers
        if ops[index].phase != FORWARD
        and not ((ops[index].again and not copies) or ops[index].region or ops[index].type in CONTROL)
    }
    # Gradients of weights that nothing tells from updates come after others; a metric's update does not.
    first = min((index for index in late if ops[index].phase == BACKWARD), default=0)
    return {index for index in late if index >= first}


def that_can_be_waited_for(graph: LogicalGraph, plan: Plan, ops: Iterable[int], index: int) -> tuple[int, ...]:
    """Those of some ops that run on the stage of op `index`, and for each micro-batch if there are any."""
    stages = plan.pipelining
    return tuple(
        other
        for other in ops
        if not graph.ops[other].region
        and (stages is None or stages.stage_of[other] == stages.stage_of[index])
        and not runs_once(plan, plan.choices[other])
    )


def runs_once(plan: Plan, choice: Choice) -> bool:
    """Whether an op runs once for all micro-batches."""
    times = [number for number, axis in enumerate(plan.mesh.axes) if axis.time and axis.size > 1]
    layouts = (*choice.inputs, *choice.outputs)
    return any(all(layout[number].is_broadcast for layout in layouts) for number in times)


def _waits(
    graph: LogicalGraph, plan: Plan, segment: Segment, ops: Collection[int], late: Collection[int]
) -> tuple[int, ...]:
    """What says that the backward has arrived: the gradients that come in, and the end of the segment's forward.

    The gradient of a mean depends on nothing, and that of a loss is not there: then the end of the segment must do.
    """
    first = min(late)
    own = [
        index for index in segment.ops if index < first and graph.ops[index].outputs and not graph.is_constant(index)
    ]
    ends = last_of(graph, own, own[-1] + 1)
    ends = [index for index in ends if index not in ops] or ends
    return that_can_be_waited_for(graph, plan, [*entering(graph, late), *ends], segment.ops[0])


def _at_level(path: Iterable[Scope], level: int) -> Scope | None:
    own = [scope for scope in path if scope.kind == RECOMPUTE]
    return own[level] if level < len(own) else None


def _in_one_go(graph: LogicalGraph, members: Sequence[int]) -> list[tuple[int, ...]]:
    """Ops in groups: in one those to which data comes that has left the others as often."""
    own = set(members)
    left: dict[int, int] = {}  # op -> how often data on its way there has left
    groups: dict[int, list[int]] = {}
    for index in range(members[0], members[-1] + 1):
        producers = {graph.tensors[tensor].producer for tensor in graph.ops[index].inputs} & left.keys()
        if index in own:
            left[index] = max((left[producer] for producer in producers), default=0)
            groups.setdefault(left[index], []).append(index)
        elif producers:
            left[index] = max(left[producer] + (producer in own) for producer in producers)
    return [tuple(ops) for ops in groups.values()]


def _can_repeat(graph: LogicalGraph, plan: Plan, index: int) -> bool:
    """Whether an op gives the same when it runs again, and nothing else comes of that."""
    op = graph.ops[index]
    if op.type == "Placeholder" or op.type in DRAWS or op.type in CONTROL or op.region:
        return False
    if not op.outputs or index in graph.effects or graph.is_constant(index):
        return False
    # What a variable holds may be another value by then.
    if any(graph.tensors[tensor].dtype in ("resource", "variant") for tensor in (*op.inputs, *op.outputs)):
        return False
    return not runs_once(plan, plan.choices[index]) and not _is_little(graph, index)


def _is_little(graph: LogicalGraph, index: int) -> bool:
    """Whether an op makes so little of what it reads that it is kept."""
    op = graph.ops[index]
    sizes = [prod(graph.tensors[tensor].shape or ()) for tensor in op.inputs]
    made = sum(prod(graph.tensors[tensor].shape or ()) for tensor in op.outputs)
    known = all(graph.tensors[tensor].shape is not None for tensor in op.outputs)
    return known and made * _LITTLE <= max(sizes, default=0)


def nbytes(graph: LogicalGraph, tensor: int) -> int:
    spec = graph.tensors[tensor]
    return layout_bytes(spec.shape or (), spec.dtype)
