"""The graph as one mesh axis sees it: for every op its legal signatures, and what each would cost to compute."""

from __future__ import annotations

import itertools
from typing import NamedTuple

from whaleish.cluster import Cluster
from whaleish.graph import LogicalGraph
from whaleish.mesh import Axis
from whaleish.planner.flops import bytes_touched, flops
from whaleish.rules import OpView, Signature, TensorSpec, registry
from whaleish.sbp import S, Sbp


class Candidate(NamedTuple):
    """A signature fitted to the axis: its splits have their smallest units.

    Attributes:
      seconds: time of the slowest part's computation; work: that of the whole op on one device.
    """

    inputs: tuple[Sbp, ...]
    outputs: tuple[Sbp, ...]
    expands: bool
    inner_bytes: int
    seconds: float
    work: float = 0.0

    def __str__(self) -> str:
        return str(Signature(self.inputs, self.outputs))


def op_view(graph: LogicalGraph, index: int) -> OpView:
    """An op without its name and place, as rules see it."""
    op, tensors = graph.ops[index], graph.tensors
    return OpView(
        op.type,
        op.attrs,
        tuple(TensorSpec(tensors[t].shape, tensors[t].dtype) for t in op.inputs),
        tuple(TensorSpec(tensors[t].shape, tensors[t].dtype) for t in op.outputs),
        tuple(graph.constants.get(t) for t in op.inputs),
    )


class AxisView:
    """Ops, candidates and compute cost for one axis; equal ops share the work."""

    def __init__(self, graph: LogicalGraph, axis: Axis, cluster: Cluster) -> None:
        self.graph, self.axis, self.cluster = graph, axis, cluster
        self._by_key: dict[tuple[object, ...], tuple[Candidate, ...]] = {}

    def op(self, index: int) -> OpView:
        return op_view(self.graph, index)

    def candidates(self, index: int) -> tuple[Candidate, ...]:
        """All legal signatures of an op, all-B first."""
        view = self.op(index)
        key = view.key
        found = self._by_key.get(key)
        if found is None:
            rule = registry.get(view.type)
            empty = rule is None or rule.split_empty
            work = self.cluster.compute_seconds(flops(view), bytes_touched(view))
            fitted = (self._fit(view, s, work, empty) for s in registry.signatures(view))
            found = self._by_key[key] = tuple(dict.fromkeys(c for c in fitted if c is not None))
        return found

    def scaled(self, index: int, candidate: Candidate, position: int, unit: int) -> Candidate | None:
        """The candidate with all units multiplied so that input `position` is split on multiples of `unit`."""
        own = candidate.inputs[position].unit
        if unit % own:
            return None
        factor, view = unit // own, self.op(index)
        entries = [S(e.dim, e.unit * factor) if e.is_split else e for e in (*candidate.inputs, *candidate.outputs)]
        count = len(candidate.inputs)
        signature = Signature(tuple(entries[:count]), tuple(entries[count:]), candidate.expands, candidate.inner_bytes)
        return self._fit(view, signature, candidate.work, True)

    def _fit(self, view: OpView, signature: Signature, work: float, empty: bool) -> Candidate | None:
        """None where the signature cannot be cut on this axis."""
        share = 1.0
        entries = []
        for sbp, spec in zip((*signature.inputs, *signature.outputs), (*view.inputs, *view.outputs), strict=True):
            if sbp.is_split:
                if spec.shape is None or sbp.dim >= len(spec.shape) or spec.shape[sbp.dim] % sbp.unit:
                    return None
                length = spec.shape[sbp.dim]
                # One unit cannot be shared: whoever holds it would do the whole op.
                if length // sbp.unit < (min(2, self.axis.size) if empty else self.axis.size):
                    return None
                cuts = self.axis.cuts(length, sbp.unit)
                longest = max(b - a for a, b in itertools.pairwise(cuts))
                share = min(share, longest / length if length else 1.0)
                sbp = self.axis.normal(sbp, length)
            entries.append(sbp)
        count = len(view.inputs)
        return Candidate(
            tuple(entries[:count]), tuple(entries[count:]), signature.expands, signature.inner_bytes, work * share, work
        )
