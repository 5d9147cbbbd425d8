"""The graph as one mesh axis sees it: for every op its legal signatures, and what each would cost to compute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from whaleish.cluster import Cluster
from whaleish.graph import LogicalGraph
from whaleish.mesh import Axis
from whaleish.planner.flops import bytes_touched, flops
from whaleish.planner.plan import Choice
from whaleish.rules import OpView, Signature, TensorSpec, registry
from whaleish.sbp import S, Sbp


class Candidate(NamedTuple):
    """A signature fitted to the axis: its splits have their smallest units.

    Attributes:
      seconds: time of the slowest part's computation; work: that of the whole op on one device.
      units: those of the signature, inputs' and then outputs': the smallest ones are no longer in proportion.
    """

    inputs: tuple[Sbp, ...]
    outputs: tuple[Sbp, ...]
    expands: bool
    inner_bytes: int
    seconds: float
    work: float = 0.0
    units: tuple[int, ...] = ()

    def __str__(self) -> str:
        return str(Signature(self.inputs, self.outputs))


def made_layouts(graph: LogicalGraph, taken: Sequence[Candidate]) -> dict[int, Sbp]:
    """Tensor -> the layout in which it is made, by the candidate of each op."""
    return {t: s for op, c in zip(graph.ops, taken, strict=True) for t, s in zip(op.outputs, c.outputs, strict=True)}


def choice_of(candidates: Sequence[Candidate]) -> Choice:
    """An op's choice on a mesh, from its candidate on each axis."""
    return Choice(
        tuple(zip(*(c.inputs for c in candidates), strict=True)),
        tuple(zip(*(c.outputs for c in candidates), strict=True)),
        tuple(axis for axis, c in enumerate(candidates) if c.expands),
    )


def op_view(graph: LogicalGraph, index: int) -> OpView:
    """An op without its name and place, as rules see it."""
    op, tensors = graph.ops[index], graph.tensors
    made = [tensors[t] for t in (*op.inputs, *op.outputs)]
    specs = tuple([TensorSpec(tensor.shape, tensor.dtype) for tensor in made])
    count = len(op.inputs)
    return OpView(op.type, op.attrs, specs[:count], specs[count:], tuple(map(graph.constants.get, op.inputs)))


@dataclass(frozen=True)
class OuterAxis:
    """An axis further out that is planned already.

    Attributes:
      taken: the candidate of each op there; it may grow with the graph.
    """

    axis: Axis
    taken: Sequence[Candidate]


class AxisView:
    """Ops, candidates and compute cost for one axis; equal ops share the work.

    Args:
      outer: the axes further out. What this axis cuts are the parts that they leave, so a candidate must fit parts of
        every length.
    """

    def __init__(self, graph: LogicalGraph, axis: Axis, cluster: Cluster, outer: Sequence[OuterAxis] = ()) -> None:
        self.graph, self.axis, self.cluster, self.outer = graph, axis, cluster, tuple(outer)
        self._by_key: dict[tuple[object, ...], tuple[Candidate, ...]] = {}

    def op(self, index: int) -> OpView:
        return op_view(self.graph, index)

    def candidates(self, index: int) -> tuple[Candidate, ...]:
        """All legal signatures of an op, all-B first."""
        view = self.op(index)
        around = self._around(index)
        key = (view.key, around)
        found = self._by_key.get(key)
        if found is None:
            rule = registry.get(view.type)
            empty = rule is None or rule.split_empty
            fitted = (self._fit(view, s, self._work(index, view), empty, around) for s in registry.signatures(view))
            distinct: dict[object, Candidate] = {}
            for candidate in fitted:
                if candidate is not None:
                    distinct.setdefault((candidate.inputs, candidate.outputs, candidate.expands), candidate)
            found = self._by_key[key] = tuple(distinct.values())
        return found

    def scaled(self, index: int, candidate: Candidate, position: int, unit: int) -> Candidate | None:
        """The candidate with all units multiplied so that input `position` is split on multiples of `unit`."""
        own = candidate.units[position]
        if unit % own:
            return None
        factor, view = unit // own, self.op(index)
        layouts = zip((*candidate.inputs, *candidate.outputs), candidate.units, strict=True)
        entries = [S(sbp.dim, given * factor) if sbp.is_split else sbp for sbp, given in layouts]
        count = len(candidate.inputs)
        signature = Signature(tuple(entries[:count]), tuple(entries[count:]), candidate.expands, candidate.inner_bytes)
        return self._fit(view, signature, candidate.work, True, self._around(index))

    def _around(self, index: int) -> tuple[tuple[Sbp, ...], ...]:
        """The op's layouts on the outer axes, its inputs' and then its outputs'."""
        return tuple((*outer.taken[index].inputs, *outer.taken[index].outputs) for outer in self.outer)

    def _work(self, index: int, view: OpView) -> float:
        if self.outer and (seconds := self.outer[-1].taken[index].seconds):
            return seconds
        return self.cluster.compute_seconds(flops(view), bytes_touched(view))

    def _lengths(self, length: int, dim: int, around: Sequence[Sbp]) -> tuple[int, ...]:
        found = {length}
        for outer, sbp in zip(self.outer, around, strict=True):
            if sbp.is_split and sbp.dim == dim:
                found = outer.axis.lengths(found, sbp.unit)
        return tuple(sorted(found))

    def _fit(
        self, view: OpView, signature: Signature, work: float, empty: bool, around: tuple[tuple[Sbp, ...], ...]
    ) -> Candidate | None:
        """None where the signature cannot be cut on this axis."""
        if any(s.is_split and spec.dtype == "string" for s, spec in zip(signature.outputs, view.outputs, strict=True)):
            return None  # strings are cut, but no process can send them to another
        share = 1.0
        entries = []
        sbps, specs = (*signature.inputs, *signature.outputs), (*view.inputs, *view.outputs)
        for slot, (sbp, spec) in enumerate(zip(sbps, specs, strict=True)):
            if sbp.is_split:
                if spec.shape is None or sbp.dim >= len(spec.shape):
                    return None
                lengths = self._lengths(spec.shape[sbp.dim], sbp.dim, [layouts[slot] for layouts in around])
                if any(length % sbp.unit for length in lengths):
                    return None
                # One unit cannot be shared: whoever holds it would do the whole op. In time one does it all anyway, and
                # strings that arrive in parts cannot go elsewhere.
                stays = self.axis.time or any(spec.dtype == "string" for spec in view.inputs)
                fewest = 1 if stays else min(2, self.axis.size)
                if min(lengths) // sbp.unit < (fewest if empty else self.axis.size):
                    return None
                length = max(lengths)
                longest = max(self.axis.lengths([length], sbp.unit))
                share = min(share, longest / length if length else 1.0)
                sbp = self.axis.normal(sbp, *lengths)
            entries.append(sbp)
        count = len(view.inputs)
        return Candidate(
            tuple(entries[:count]),
            tuple(entries[count:]),
            signature.expands,
            signature.inner_bytes,
            work * share,
            work,
            tuple(sbp.unit for sbp in sbps),
        )
