"""What `explain` says of memory: what the fullest device holds, and what of this plan would make that less."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from whaleish.graph import BACKWARD, LogicalGraph
from whaleish.mesh import Mesh
from whaleish.offloading import ACTIVATIONS as OFFLOAD_ACTIVATIONS
from whaleish.offloading import SLOTS as OFFLOAD_SLOTS
from whaleish.offloading import offloading
from whaleish.passes.segments import RECOMPUTE
from whaleish.planner.estimate import DeviceMemory, Estimate
from whaleish.planner.held import ACTIVATIONS, GATHERED, GRADIENTS, OLD_VALUE, REGISTERS, SLOTS, WEIGHTS, Held
from whaleish.planner.plan import Plan
from whaleish.sbp import Layout
from whaleish.tables import bytes_text
from whaleish.zero import GRADIENTS as SHARE_GRADIENTS
from whaleish.zero import SLOTS as SHARE_SLOTS
from whaleish.zero import WEIGHTS as SHARE_WEIGHTS
from whaleish.zero import WHOLE_BELOW, zero_of

_MUCH = 0.1
"""From which part of the peak on a kind is worth a word."""

_ZERO = {SLOTS: SHARE_SLOTS, GRADIENTS: SHARE_GRADIENTS, WEIGHTS: SHARE_WEIGHTS}


def memory_lines(graph: LogicalGraph, plan: Plan, held: Estimate) -> list[str]:
    """What each device holds, what is largest on the fullest, and what would free that.

    Args:
      graph, plan: with their passes behind them, not expanded.
    """
    fullest = held.fullest
    where = f"when {fullest.at} runs" if fullest.at else "before anything runs"
    lines = [
        f"a device holds at most {bytes_text(fullest.peak)}: device {fullest.device}, {where}",
        *(f"  {line}" for line in str(held).splitlines()),
        "  the largest:",
        *(f"    {bytes_text(each.nbytes):>10}  {each.kind}, {each.place}" for each in fullest.largest),
    ]
    advice = list(_Advice(graph, plan).lines(fullest))
    return lines + (["  it would hold less with", *(f"    {line}" for line in advice)] if advice else [])


class _Advice:
    def __init__(self, graph: LogicalGraph, plan: Plan) -> None:
        self.graph, self.plan = graph, plan
        self.scopes = {scope.kind for path in graph.scopes for scope in path}
        self.trains = any(op.phase == BACKWARD for op in graph.ops)
        self.zero = max(map(zero_of, graph.scopes), default=0)

    def lines(self, memory: DeviceMemory) -> Iterator[str]:
        """For each kind that takes much what would free some of it, the largest kind first."""
        mesh = self._mesh(memory.device)
        for each in sorted(memory.leading, key=lambda each: -memory[each.kind]):
            if memory[each.kind] >= _MUCH * memory.peak:
                yield from (f"{way} ({each.kind})" for way in self._ways(each.kind, each, mesh))

    def _mesh(self, device: int) -> Mesh:
        stages = self.plan.pipelining
        meshes = stages.meshes if stages is not None else (self.plan.mesh,)
        return next(mesh for mesh in meshes if device in mesh.devices)

    def _ways(self, kind: str, leading: Held, mesh: Mesh) -> Iterator[str]:
        if kind in _ZERO:
            yield from self._shared_out(kind, leading, mesh)
            if kind == SLOTS and self.trains and not self._offloads(OFFLOAD_SLOTS):
                yield 'wh.offload("slots"), which keeps them in the host\'s memory'
        elif kind == ACTIVATIONS:
            again = RECOMPUTE in self.scopes or (self.plan.pipelining and self.plan.pipelining.recompute)
            if self.trains and not again:
                yield "wh.recompute() round layers, which makes again what is between them"
            if self.trains and not self._offloads(OFFLOAD_ACTIVATIONS):
                yield 'wh.offload("activations") round layers, which keeps them in the host\'s memory'
            yield self._smaller_micro_batches()
        elif kind == REGISTERS:
            stages = self.plan.pipelining
            if stages is not None and stages.schedule and self.trains and not stages.recompute:
                yield "wh.pipeline(recompute=True), which makes the forward of a stage again"
            if stages is not None and stages.schedule == "gpipe":
                yield 'schedule="1f1b", by which a stage keeps fewer micro-batches'
            else:
                yield self._smaller_micro_batches()
        elif kind == GATHERED:
            if leading.place.endswith(OLD_VALUE):
                yield "assignments that wait for the last use of a variable: earlier ones keep the old value too"
            else:
                yield "smaller layers: of each the weights are whole while it is used"

    def _offloads(self, kind: str) -> bool:
        return any(offloading(path, kind) for path in self.graph.scopes)

    def _smaller_micro_batches(self) -> str:
        if self.plan.pipelining is not None and not self.plan.pipelining.schedule:
            return "wh.pipeline(n) round the stages, which takes the batch in n micro-batches"
        if self.plan.mesh.micro_batches > 1:
            return f"more micro-batches than {self.plan.mesh.micro_batches}"
        return "wh.accumulate(n), which takes the batch in n micro-batches"

    def _shared_out(self, kind: str, held: Held, mesh: Mesh) -> Iterator[str]:
        space, zero = mesh.in_space, _ZERO[kind]
        if self.zero >= zero or not ("replica" in self.scopes or "split" not in self.scopes):
            return
        # A summand that waits for being added up over devices is there in any case.
        waits = kind == GRADIENTS and any(sbp.kind == "P" for sbp in held.layout) and not self._is_total(held)
        count = self._copies(mesh, space, held.layout)
        if count > 1 and not waits and self._elements(kind, held) >= WHOLE_BELOW:
            yield f"wh.replica(zero={zero}), by which each of {count} replicas has a part"
        if kind == WEIGHTS and count > 1 and "split" not in self.scopes:
            yield "wh.split(), which divides the layers and their weights"

    def _elements(self, kind: str, held: Held) -> int:
        """At least how many elements it has as a whole."""
        if kind == GRADIENTS:
            return held.nbytes // 4
        return prod(self.graph.tensors[held.tensor].shape or ())

    def _is_total(self, held: Held) -> bool:
        """Whether something is added up over micro-batches, and is a summand over devices until after them."""
        times = [number for number, axis in enumerate(self.plan.mesh.axes) if axis.time and axis.size > 1]
        # Of a chunk's gradient there is a total as well, which lies as its summands do.
        return bool(times) and (self.plan.pipelining is not None or held.layout[times[0]].is_broadcast)

    @staticmethod
    def _copies(mesh: Mesh, space: Mesh, layout: Layout) -> int:
        """On how many devices a piece of what lies so is."""
        axes = space.axes if len(layout) == len(space.axes) else mesh.axes
        return prod(axis.size for axis, sbp in zip(axes, layout, strict=True) if not axis.time and not sbp.is_split)
