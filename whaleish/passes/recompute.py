"""Recomputation: a step whose backward makes again, segment by segment, what else would be kept of the forward.

What a segment is given is kept, and what it gives to others; what it makes in between is made again when the gradients
have arrived at its end (Chen et al., 2016, "Training deep nets with sublinear memory cost"). Within a segment there may
be others: of these the copies, too, are made again, so that all of a segment is never there at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from whaleish.graph import FORWARD, LogicalGraph, Scope
from whaleish.passes.draft import follow
from whaleish.passes.repeat import repeat
from whaleish.passes.segments import RECOMPUTE, Segment, find_segments, in_turn, repeat_of
from whaleish.planner.plan import Plan


@dataclass(frozen=True)
class Recomputed:
    """A step that makes part of its forward again.

    Attributes:
      graph, plan: of the step.
      origin: for each op the number of the op that it is, or is a copy of, in the graph from which this was made.
      empty: the enterings of `wh.recompute()` of which nothing is made again.
    """

    graph: LogicalGraph
    plan: Plan
    origin: tuple[int, ...]
    empty: tuple[Scope, ...] = ()


def recompute(graph: LogicalGraph, plan: Plan, chosen: Sequence[Sequence[int]] = ()) -> Recomputed:
    """The step with the segments of its `wh.recompute()` scopes, and further ones, made again for the backward.

    Args:
      graph, plan: not expanded. They stay as they are, and are returned where there is nothing to recompute.
      chosen: ops of further segments, which hold none of a scope's.
    """
    made = Recomputed(graph, plan, tuple(range(len(graph.ops))))
    depth = max((_depth(path) for path in graph.scopes), default=0)
    latest = {index for index, op in enumerate(graph.ops) if op.phase == FORWARD}
    further = [Segment(None, tuple(ops)) for ops in chosen]
    entered: dict[Scope, None] = {}
    done: set[Scope] = set()
    for level in range(max(depth, bool(further))):
        segments = find_segments(made.graph, made.plan, level, latest)
        entered |= dict.fromkeys(segment.scope for segment in segments if segment.scope)
        readers = made.graph.consumers()
        parts = [(s, repeat_of(made.graph, made.plan, s, readers)) for s in (*segments, *(() if level else further))]
        parts = [(segment, part) for segment, part in parts if part.ops]
        done |= {segment.scope for segment, _ in parts if segment.scope}
        if not parts:
            break
        before = max((op.again for op in made.graph.ops), default=0)
        again, origin = repeat(made.graph, in_turn(made.graph, made.plan, [part for _, part in parts]))
        made = Recomputed(again, follow(made.plan, origin), tuple(made.origin[index] for index in origin))
        latest = {index for index, op in enumerate(again.ops) if op.again > before}
    empty = tuple(scope for scope in entered if scope not in done)
    return Recomputed(made.graph, made.plan, made.origin, empty)


def _depth(path: Sequence[Scope]) -> int:
    return sum(scope.kind == RECOMPUTE for scope in path)
