"""Facts about a graph that the search asks for again and again, found once."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from whaleish.graph import BACKWARD, FORWARD, LogicalGraph, layout_bytes
from whaleish.planner.mates import find_mates
from whaleish.planner.roles import SPLIT, Role
from whaleish.planner.view import op_view
from whaleish.rules import registry
from whaleish.sbp import Sbp

PRODUCTS = frozenset(
    {
        "BatchMatMul",
        "BatchMatMulV2",
        "BatchMatMulV3",
        "Conv2D",
        "Conv3D",
        "DepthwiseConv2dNative",
        "Einsum",
        "GatherV2",
        "MatMul",
        "ResourceGather",
    }
)
"""Ops that a `split` scope shards by their weights."""

HEAVY = PRODUCTS | {
    "Conv2DBackpropFilter",
    "Conv2DBackpropInput",
    "Conv3DBackpropFilterV2",
    "Conv3DBackpropInputV2",
    "DepthwiseConv2dNativeBackpropFilter",
    "DepthwiseConv2dNativeBackpropInput",
}
"""Ops whose arithmetic outweighs what they read: on summands every part would do all of it."""

LOOKUPS = frozenset({"GatherV2", "ResourceGather"})
"""Products of which each part can do what it has rows for."""

_UNSENT = 1e12  # bytes: strings are not sent between processes, so anything else is cheaper

_CARRIERS = frozenset({"Cast", "ExpandDims", "Identity", "ReadVariableOp", "Reshape", "Squeeze", "Transpose"})
_FLOATS = ("float", "bfloat", "complex")


class Facts:
    """What can be said of a graph before any layout is chosen.

    Args:
      roles: of each scope path, on the axis that is planned.
      cuts: tensor -> into how many parts outer axes cut it, where they do.
      pinned: tensor (also a variable's handle) -> layout on this axis, where the user stated one.

    Attributes:
      nbytes: of the part of each tensor that outer axes leave; a handle's is that of its variable, and of strings it is
        more than of anything. sizes: elements of each tensor, whole.
      handles: resource tensors of variables.
      weights: tensors that are a variable (its handle, and what is read, cast or reshaped from it) -> its handle.
      differentiable: tensors that depend on trainable variables, and so have a gradient where there is a backward.
      argument_like: tensors made of the step's arguments and constants alone.
      batches: lengths of dim 0 of the arguments.
      whole: handles that cannot be sharded -> an op that uses them and cannot be divided.
      splittable: handles of variables that `split` scopes may shard.
      mates: handle -> handles of variables that it should share a layout with.
      last_use: tensor -> the last op that reads or makes it. last_forward_use: the same of handles, forward only.
      readers: tensor -> ops that read it. repeats: how often each op runs.
    """

    def __init__(
        self,
        graph: LogicalGraph,
        roles: list[Role],
        cuts: Mapping[int, int] | None = None,
        pinned: Mapping[int, Sbp] | None = None,
    ) -> None:
        self.graph, self.roles = graph, roles
        self.pinned = dict(pinned or {})
        self.sizes = [prod(t.shape or ()) for t in graph.tensors]
        self.nbytes: list[float] = [
            _UNSENT if t.dtype == "string" else layout_bytes(t.shape or (), t.dtype) for t in graph.tensors
        ]
        for v in graph.variables:
            self.nbytes[v.handle] = layout_bytes(v.shape, v.dtype)
        for tensor, count in (cuts or {}).items():
            self.nbytes[tensor] /= count
        self.handles = {v.handle for v in graph.variables}
        self.has_backward = any(op.phase == BACKWARD for op in graph.ops)
        self.weights, self.differentiable = self._dependents()
        self.argument_like = self._argument_like()
        self.batches = {(graph.tensors[t].shape or (0,))[0] for t in graph.inputs} - {0, 1}
        self.whole, self.splittable = self._splittable()
        self.mates = {handle: group for group in find_mates(graph) for handle in group}
        self.last_use, self.last_forward_use = self._last_uses()
        self.readers = graph.consumers()
        self.repeats = [graph.repeats(index) for index in range(len(graph.ops))]

    def role(self, op: int) -> Role:
        """What the scopes round an op ask of it."""
        return self.roles[self.graph.ops[op].scope]

    def branches(self, op: int) -> bool:
        """Whether an op is where the ways to satisfy a `split` scope part: the use of a weight that may be sharded."""
        found = self.graph.ops[op]
        if found.phase != FORWARD:
            return False
        asked = found.type in PRODUCTS and self.role(op).kind == SPLIT
        return asked or any(t in self.splittable for t in found.inputs)

    def _dependents(self) -> tuple[dict[int, int], set[int]]:
        weights = {handle: handle for handle in self.handles}
        differentiable = {v.handle for v in self.graph.variables if v.trainable}
        for op in self.graph.ops:
            if any(t in differentiable for t in op.inputs):
                differentiable.update(t for t in op.outputs if self.graph.tensors[t].dtype.startswith(_FLOATS))
            if op.type in _CARRIERS and op.inputs and op.inputs[0] in weights:
                weights.update(dict.fromkeys(op.outputs, weights[op.inputs[0]]))
        return weights, differentiable

    def _argument_like(self) -> set[int]:
        found = set(self.graph.inputs)
        for op in self.graph.ops:
            inputs = [t for t in op.inputs if t not in self.graph.constants]
            if inputs and all(t in found for t in inputs):
                found.update(op.outputs)
        return found

    def _splittable(self) -> tuple[dict[int, int], set[int]]:
        floats = {v.handle for v in self.graph.variables if v.dtype.startswith(_FLOATS)}
        wanted: set[int] = set()
        whole: dict[int, int] = {}
        for index, op in enumerate(self.graph.ops):
            for handle in self.handles.intersection(op.inputs):
                if registry.get(op.type) is None or not op_view(self.graph, index).is_static:
                    whole.setdefault(handle, index)
                if handle in floats and op.phase == FORWARD and self.role(index).kind == SPLIT:
                    wanted.add(handle)
        wanted.update(t for t, sbp in self.pinned.items() if t in self.handles and sbp.is_split)
        return whole, wanted - set(whole)

    def _last_uses(self) -> tuple[list[int], dict[int, int]]:
        last, forward = [-1] * len(self.graph.tensors), dict.fromkeys(self.handles, -1)
        for index, op in enumerate(self.graph.ops):
            for tensor in (*op.inputs, *op.outputs):
                last[tensor] = index
                if op.phase == FORWARD and tensor in forward:
                    forward[tensor] = index
        for tensor in self.graph.outputs:
            last[tensor] = len(self.graph.ops)
        return last, forward
