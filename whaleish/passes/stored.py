"""What variables hold, as the ops of a step read it."""

from __future__ import annotations

from collections.abc import Container

from whaleish.graph import LogicalGraph


def made_of_variables(graph: LogicalGraph, by: Container[str] | None = None) -> set[int]:
    """Tensors that are what variables hold, or made of that and of constants alone: the same for any batch.

    Args:
      by: the types of ops by which they may be made; None: all.
    """
    found: set[int] = set()
    for op in graph.ops:
        own = [tensor for tensor in op.inputs if tensor not in graph.constants]
        made = own and (by is None or op.type in by) and found.issuperset(own)
        if op.type == "ReadVariableOp" or made:
            found.update(op.outputs)
    return found
