"""Mates: which variables share a layout because their updates are elementwise together."""

from __future__ import annotations

from whaleish.alike import join_alike, variables_alike
from whaleish.graph import BACKWARD, UPDATE, LogicalGraph


def find_mates(graph: LogicalGraph) -> list[list[int]]:
    """Groups of handles of variables of one shape that elementwise ops join: a weight and its optimizer slots.

    Only ops outside the forward phase count, and only tensors of one shape; so two weights are mates only when
    something adds them up. Wrong mates would cost boxing, never a wrong result.
    """
    groups = variables_alike(graph, join_alike(graph, (BACKWARD, UPDATE)))
    return [[variable.handle for variable in group] for group in groups.values() if len(group) > 1]
