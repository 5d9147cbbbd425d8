"""ZeRO: which variables and gradients lie in pieces over the parts of a `replica(zero=...)`, and along which dim.

Replicas would all store the same optimizer state (1), sum up the same gradients (2) and store the same weights (3);
each has a piece instead (Rajbhandari et al., 2020). That is a layout and nothing else: a slot S(d) makes the gradient
that meets it a reduce-scatter, and the new weight that comes of it an all-gather, together as many bytes as the
all-reduce that they replace.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from itertools import pairwise
from math import prod

from whaleish.alike import join_alike, variables_alike
from whaleish.graph import UPDATE, LogicalGraph
from whaleish.mesh import Axis
from whaleish.planner.roles import Role
from whaleish.planner.view import AxisView
from whaleish.rules.gradient import GRADIENT
from whaleish.sbp import B, S, Sbp
from whaleish.zero import WEIGHTS, WHOLE_BELOW, asking


class Zero:
    """What is in pieces on one axis because a scope says so.

    Args:
      roles: of each scope path, on the axis.
      view: of the axis. whole: handles that cannot be sharded.

    Attributes:
      variables: handle -> layout, of weights and of what their updates keep.
      gradients: `Gradient` op -> layout in which it leaves what it is given.
    """

    def __init__(self, graph: LogicalGraph, view: AxisView, roles: Sequence[Role], whole: Container[int]) -> None:
        axis = view.axis
        self.variables: dict[int, Sbp] = {}
        self.gradients: dict[int, Sbp] = {}
        zeros = [role.zero for role in roles]
        asked = {handle: zeros[scope] for handle, scope in asking(graph, zeros).items()}
        if not asked or axis.size == 1:
            return
        alike, users = join_alike(graph, (UPDATE,)), graph.consumers()
        split: dict[int, Sbp] = {}
        for name, variables in variables_alike(graph, alike).items():
            group = [variable.handle for variable in variables]
            zero = max(asked.get(handle, 0) for handle in group)
            if not zero or any(handle in whole for handle in group):
                continue
            pieces = [handle for handle in group if zero >= WEIGHTS or handle not in asked]
            uses = [(handle, user) for handle in pieces for user in users[handle]]
            dims = _dims(variables[0].shape, axis)
            dim = next((dim for dim in dims if all(_may(view, user, handle, dim) for handle, user in uses)), None)
            if dim is None:
                continue
            split[name] = S(dim)
            for handle in group:
                self.variables[handle] = S(dim) if zero >= WEIGHTS or handle not in asked else B
        for index, op in enumerate(graph.ops):
            if op.type == GRADIENT and alike.get(op.outputs[0]) in split:
                self.gradients[index] = split[alike[op.outputs[0]]]


def _dims(shape: Sequence[int], axis: Axis) -> list[int]:
    """The dims along which a variable may lie, the best first; none where it stays whole.

    Those that the axis divides most evenly, and of these the first: parts of dim 0 are scattered and gathered as they
    lie, those of another have to be put together.
    """
    if prod(shape) < WHOLE_BELOW:
        return []
    longest = [max(b - a for a, b in pairwise(axis.cuts(length))) / max(length, 1) for length in shape]
    return sorted((dim for dim, length in enumerate(shape) if length >= axis.size), key=longest.__getitem__)


def _may(view: AxisView, op: int, handle: int, dim: int) -> bool:
    """Whether an op can be carried out on a variable that is cut along a dim."""
    place = view.graph.ops[op].inputs.index(handle)
    needs = (candidate.inputs[place] for candidate in view.candidates(op))
    return any(need.is_split and need.dim == dim for need in needs)
