"""Memory: what each device of a planned step holds at its peak, and what would free it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from whaleish.chunks import Actors, Chunk, Key, cut, make_actors
from whaleish.graph import LogicalGraph, layout_bytes
from whaleish.passes import finished
from whaleish.passes.budget import recomputed
from whaleish.planner.estimate import DeviceMemory, Estimate
from whaleish.planner.held import ARGUMENTS, GRADIENTS, KINDS, REGISTERS, Held, Peak, variable_held
from whaleish.planner.liveness import Liveness
from whaleish.planner.plan import Pipelining, Plan
from whaleish.rewrite.expand import expand
from whaleish.rules.host import TO_HOST

_AT_MOST = "all registers are full when the largest chunk is at its peak, and every device has all arguments whole"


def estimate(graph: LogicalGraph, plan: Plan, memory: int | None, processes: int = 1) -> Estimate:
    """What a step would take on each device, with the passes that run before it does.

    Args:
      graph, plan: as the step was captured and planned.
      memory: the budget of `wh.function(recompute="auto")`; None for none.
      processes: 1, or as many as there are devices.
    """
    made = recomputed(graph, plan, memory)
    return estimate_passed(*finished(made.graph, made.plan), processes)


def estimate_passed(graph: LogicalGraph, plan: Plan, processes: int = 1) -> Estimate:
    """The same of a step with its passes behind it, not expanded."""
    if plan.pipelining is not None:
        return _Stages(graph, plan, plan.pipelining, processes).estimate()
    graph, plan = expand(graph, plan)
    liveness = Liveness(graph, plan)
    found = []
    for part in plan.mesh.parts_at(0):
        peak = liveness.peak(part)
        at = graph.place(peak.op) if peak.op >= 0 else ""
        found.append(_device(plan.mesh.device(part), peak.held, at, peak.on_host))
    return Estimate(tuple(sorted(found, key=lambda each: each.device)))


def _device(device: int, held: Iterable[Held], at: str, on_host: int) -> DeviceMemory:
    held = sorted(held, key=lambda each: -each.nbytes)
    count: Counter[str] = Counter()
    leading: dict[str, Held] = {}
    for each in held:
        count[each.kind] += each.nbytes
        leading.setdefault(each.kind, each)
    kinds = tuple((kind, count[kind]) for kind in KINDS)
    return DeviceMemory(device, kinds, tuple(held[:3]), tuple(leading.values()), at, on_host)


class _Stages:
    """A step with stages: variables, arguments, registers and totals, and beside them the largest chunk of a device."""

    def __init__(self, graph: LogicalGraph, plan: Plan, stages: Pipelining, processes: int) -> None:
        self.graph, self.plan, self.stages = graph, plan, stages
        self.chunks = cut(graph, plan)
        self.actors: Actors = make_actors(self.chunks, plan, processes)
        self.liveness = {chunk.key: self._liveness(chunk) for chunk in self.chunks.all}
        self.by_key = {chunk.key: chunk for chunk in self.chunks.all}
        self.registers: dict[Key, int] = {}
        for actor, key in self.actors.chunk_of.items():
            self.registers[key] = max(self.registers.get(key, 0), self.actors.graph.by_name[actor].registers)

    @staticmethod
    def _liveness(chunk: Chunk) -> Liveness:
        totals = {number for number, give in enumerate(chunk.gives) if give.adds_up}
        return Liveness(*expand(chunk.graph, chunk.plan), len(chunk.takes), totals)

    def estimate(self) -> Estimate:
        return Estimate(tuple(map(self._of_device, self.plan.devices)), _AT_MOST)

    def _of_device(self, device: int) -> DeviceMemory:
        held = [*self._variables(device, on_host=False), *self._arguments(), *self._received(device)]
        on_host = [*self._variables(device, on_host=True)]
        at, most, waiting = "", Peak(-1, -1, ()), 0
        for chunk in self.chunks.all:
            mesh = chunk.plan.mesh
            if device not in mesh.devices:
                continue
            part = mesh.parts_at(0)[mesh.devices.index(device)]
            held += self._given(chunk, part, on_host=False)
            on_host += self._given(chunk, part, on_host=True)
            peak = self.liveness[chunk.key].peak(part)
            waiting = max(waiting, peak.on_host)
            beside = (*peak.held, *self._fetched(chunk, device))
            nbytes = sum(each.nbytes for each in beside)
            if nbytes > most.nbytes:
                most = Peak(nbytes, peak.op, beside)
                place = self.liveness[chunk.key].graph.place(peak.op) if peak.op >= 0 else ""
                at = f"{chunk.key}: {place}" if place else str(chunk.key)
        return _device(device, [*held, *most.held], at, waiting + sum(each.nbytes for each in on_host))

    def _variables(self, device: int, on_host: bool) -> Iterator[Held]:
        for variable, (_, layout) in zip(self.graph.variables, self.plan.variables, strict=True):
            mesh = self.plan.mesh_of(self.graph.tensors[variable.handle].producer).in_space
            if device in mesh.devices and variable.on_host == on_host:
                yield variable_held(variable, layout, mesh, mesh.devices.index(device))

    def _arguments(self) -> Iterator[Held]:
        for tensor, layout in zip(self.graph.inputs, self.plan.inputs, strict=True):
            spec = self.graph.tensors[tensor]
            nbytes = layout_bytes(spec.shape or (), spec.dtype) if spec.shape is not None else 0
            yield Held(tensor, layout, nbytes, ARGUMENTS, self.graph.place(spec.producer))

    def _given(self, chunk: Chunk, part: int, on_host: bool) -> Iterator[Held]:
        """The registers of a chunk, all full, and its totals."""
        for number, give in enumerate(chunk.gives):
            spec = self.graph.tensors[give.tensor]
            if (self.graph.ops[spec.producer].type == TO_HOST) != on_host:
                continue
            place, count, kind = self.graph.place(spec.producer), self.registers[chunk.key], REGISTERS
            if give.axis is None:
                nbytes = self.liveness[chunk.key].given_bytes(number, part)
            else:
                nbytes = layout_bytes(chunk.plan.mesh.local_shape(spec.shape or (), give.arrival, part), spec.dtype)
                # What is joined is there in pieces and, at the end, as one.
                count, kind = (1, GRADIENTS) if give.adds_up else (2, REGISTERS)
            if nbytes:
                times = f"{count} registers of {chunk.key}, " if count > 1 and give.axis is None else ""
                yield Held(give.tensor, give.layout, count * nbytes, kind, times + place)

    def _received(self, device: int) -> Iterator[Held]:
        """The registers into which the rank of a device receives, all full; none in one process."""
        graph = self.actors.graph
        for sender, pieces in self.actors.loads.items():
            spec = graph.by_name[graph.receiver_of[sender]]
            if graph.queue_of[spec.name].process == device:
                for key, number, part in pieces:
                    yield self._copy(key, number, part, spec.registers)

    def _fetched(self, chunk: Chunk, device: int) -> Iterator[Held]:
        """What a chunk reads of other devices, where it fetches it itself: in one process."""
        place = chunk.plan.mesh.devices.index(device)
        for key, number in () if self.actors.loads else chunk.takes:
            here = self.by_key[key].plan.mesh
            giver = place % len(here.devices)
            if here.devices[giver] != device:
                yield self._copy(key, number, here.parts_at(0)[giver], 1)

    def _copy(self, key: Key, number: int, part: int, count: int) -> Held:
        """So many firings' pieces of what a chunk gives, on another device."""
        give, mesh = self.by_key[key].gives[number], self.by_key[key].plan.mesh
        spec = self.graph.tensors[give.tensor]
        nbytes = layout_bytes(mesh.local_shape(spec.shape or (), give.arrival, part), spec.dtype)
        kind = GRADIENTS if give.adds_up else REGISTERS
        return Held(give.tensor, give.layout, count * nbytes, kind, f"from {key}, {self.graph.place(spec.producer)}")
