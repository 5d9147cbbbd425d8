"""Conditions that write variables, without branches: both run, and what they write is chosen between.

A condition is one op to whoever runs it, so all that it writes is written in one place. An optimizer that skips a step
whose gradients are not finite, or that adds up gradients over several, traces as one which writes every variable. Under
stages these live on different devices; so there an assignment in a branch

    if finite: v = new            becomes            v = new if finite else v

which each stage does for its own variables. What a branch computes is computed in any case.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from whaleish.capture.attributes import attributes
from whaleish.graph import LogicalGraph, Op, Tensor
from whaleish.rules.control import CONDITION, CONDITION_RESULT, CONTROL

_ASSIGN = "AssignVariableOp"
_ADD = frozenset(["AssignAddVariableOp", "AssignSubVariableOp"])
_NODE = tf.compat.v1.NodeDef


def choose_in_stages(graph: LogicalGraph) -> bool:
    """Rewrites, in place, the conditions that write variables in a graph with stages; whether there were any.

    Those that do something else besides stay as they are: what they print, for instance, is not to be printed in any
    case. The new tensors stand at the end, until `prune` numbers all in order.
    """
    if not any(scope.kind == "stage" for path in graph.scopes for scope in path):
        return False
    found = False
    # Inner ones first: they come before those that they are in.
    for anchor in [op for op in graph.ops if op.type == CONDITION]:
        if _can_choose(graph, anchor):
            _Chooser(graph, anchor).run()
            found = True
    return found


def _can_choose(graph: LogicalGraph, anchor: Op) -> bool:
    regions = anchor.attrs["regions"]
    effects = set(graph.effects)
    writes = False
    for index, op in enumerate(graph.ops):
        if op.type == CONDITION_RESULT and op.attrs["regions"] == regions:
            shapes = {graph.tensors[tensor].shape for tensor in op.inputs}
            if len(shapes) > 1 or None in shapes or graph.tensors[op.outputs[0]].dtype in ("variant", "resource"):
                return False
        if op.region not in regions:
            continue
        assigns = op.type == _ASSIGN or op.type in _ADD
        if op.type in CONTROL or (index in effects and not assigns):
            return False
        writes |= assigns
    inside = {number for number, region in enumerate(graph.regions) if region.parent in regions}
    flat = not any(op.region in inside for op in graph.ops)
    boolean = graph.tensors[anchor.inputs[0]].dtype == "bool"
    return writes and boolean and not anchor.attrs["cases"] and flat


class _Chooser:
    """Rewrites one condition."""

    def __init__(self, graph: LogicalGraph, anchor: Op) -> None:
        self.graph, self.anchor = graph, anchor
        self.regions: tuple[int, ...] = tuple(anchor.attrs["regions"])
        self.parent = graph.regions[self.regions[0]].parent
        self.ops: list[Op] = []
        self.place: list[int] = []  # of each op that was there
        self.outside = [c for c in anchor.controls if graph.ops[c].region not in self.regions]

    def run(self) -> None:
        graph = self.graph
        variables = {variable.handle for variable in graph.variables}
        ran = [index for index, op in enumerate(graph.ops) if op.region in self.regions and not op.outputs]
        uses: dict[int, dict[int, list[int]]] = {region: {} for region in self.regions}
        for op in graph.ops:
            if op is self.anchor:
                self.place.append(len(self.ops) - 1)
                continue
            op.controls = tuple(dict.fromkeys(self._instead(op.controls, ran)))
            if op.type == CONDITION_RESULT and op.attrs["regions"] == self.regions:
                self.ops += [self._select(op.name, *op.inputs, op.outputs[0], like=op)]
            elif op.region in self.regions:
                self._move(op, variables, uses)
            else:
                self.ops.append(op)
            self.place.append(len(self.ops) - 1)
        for number, op in enumerate(self.ops):
            for tensor in op.outputs:
                graph.tensors[tensor].producer = number
        graph.ops = self.ops
        graph.effects = tuple(self.place[index] for index in graph.effects)

    def _instead(self, controls: tuple[int, ...], ran: list[int]) -> Iterator[int]:
        """Who waits for the condition waits for what it would have run."""
        for control in controls:
            if self.graph.ops[control] is self.anchor:
                yield from (self.place[index] for index in ran)
                yield from (self.place[index] for index in self.outside)
            else:
                yield self.place[control]

    def _move(self, op: Op, variables: set[int], uses: dict[int, dict[int, list[int]]]) -> None:
        """An op of a branch, out of it."""
        branch = self.regions.index(op.region)
        handles = variables.intersection(op.inputs)
        if handles:  # as the branch did, it waits for what the condition waits for, and for the branches before
            earlier = [
                number
                for region in self.regions[:branch]
                for handle in handles
                for number in uses[region].get(handle, ())
            ]
            op.controls = tuple(dict.fromkeys([*op.controls, *(self.place[c] for c in self.outside), *earlier]))
        if op.type == _ASSIGN or op.type in _ADD:
            handle, value = op.inputs
            spec = self.graph.tensors[value]
            if op.type == _ASSIGN:
                made = self._add("ReadVariableOp", (handle,), spec, op, op.controls, dtype=spec.dtype)
            else:
                made = self._add("ZerosLike", (value,), spec, op, (), T=spec.dtype)
            then, other = (value, made) if branch == 0 else (made, value)
            chosen = self._tensor(spec)
            self.ops.append(self._select(f"{op.name}/chosen", then, other, chosen, like=op))
            op.inputs = (handle, chosen)
        for handle in handles:
            uses[op.region].setdefault(handle, []).append(len(self.ops))
        op.region = self.parent
        self.ops.append(op)

    def _select(self, name: str, then: int, other: int, made: int, like: Op) -> Op:
        """What one branch has where the condition holds, and another where it does not."""
        node = _node("SelectV2", name, T=self.graph.tensors[then].dtype)
        return self._like(like, node, (self.anchor.inputs[0], then, other), made, ())

    def _add(
        self, type: str, inputs: tuple[int, ...], spec: Tensor, like: Op, controls: tuple[int, ...], **types: str
    ) -> int:
        """A further op; returns what it makes."""
        made = self._tensor(spec)
        node = _node(type, f"{like.name}/{type}", **types)
        self.ops.append(self._like(like, node, inputs, made, controls))
        return made

    def _like(self, like: Op, node: Any, inputs: tuple[int, ...], made: int, controls: tuple[int, ...]) -> Op:
        """An op where another one was."""
        attrs = attributes(node)
        return Op(
            node.name, node.op, inputs, (made,), controls, attrs, like.phase, like.scope, node, region=self.parent
        )

    def _tensor(self, spec: Tensor) -> int:
        self.graph.tensors.append(Tensor(-1, 0, spec.shape, spec.dtype))
        return len(self.graph.tensors) - 1


def _node(type: str, name: str, **types: str) -> tf.compat.v1.NodeDef:
    node = _NODE(name=name, op=type)
    for key, dtype in types.items():
        node.attr[key].type = tf.as_dtype(dtype).as_datatype_enum
    return node
