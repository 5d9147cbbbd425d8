"""What `replica(zero=...)` asks for."""

from __future__ import annotations

from collections.abc import Sequence

from whaleish.graph import FORWARD, LogicalGraph, ScopePath

SLOTS, GRADIENTS, WEIGHTS = 1, 2, 3
"""What the parts of a replica share out, instead of each having all of it: from so much `zero` on."""

WHOLE_BELOW = 4096
"""Elements below which a variable stays whole: what it would save is not worth collectives of its own."""


def zero_of(path: ScopePath) -> int:
    """The most that a `replica` of a scope path asks for."""
    return max((int(scope.option("zero", 0)) for scope in path), default=0)


def asking(graph: LogicalGraph, zeros: Sequence[int]) -> dict[int, int]:
    """Handle -> the scope path that asks for the most, of the variables that forward ops under such scopes use.

    Args:
      zeros: what each scope path asks for.
    """
    handles, found = {variable.handle for variable in graph.variables}, dict[int, int]()
    for op in graph.ops if any(zeros) else ():
        if op.phase == FORWARD and zeros[op.scope]:
            for handle in handles.intersection(op.inputs):
                found[handle] = max(found.get(handle, op.scope), op.scope, key=zeros.__getitem__)
    return found
