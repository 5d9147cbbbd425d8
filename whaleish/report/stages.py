"""`explain` for a step with stages: who holds and does what, what crosses between stages, how long it would take."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from whaleish.chunks import Actors, Chunk, Chunks, Key, cut, make_actors
from whaleish.cluster import Cluster
from whaleish.graph import LogicalGraph
from whaleish.planner.plan import Pipelining, Plan
from whaleish.report.costs import actor_seconds, cost_of
from whaleish.report.crossings import Crossing, find_crossings
from whaleish.report.explain import move_text, tensor_text, whole_lines
from whaleish.report.shares import weights
from whaleish.report.zero import whole_in_spite
from whaleish.rewrite.expand import expand
from whaleish.runtime import EACH, Trace, predict
from whaleish.sbp import format_layout
from whaleish.schedule import Schedule
from whaleish.tables import bytes_text, table


def explain_stages(graph: LogicalGraph, plan: Plan, cluster: Cluster, processes: int = 1) -> str:
    """A text for people.

    Args:
      processes: 1, or as many as there are devices.
    """
    return "\n".join(_Report(graph, plan, cluster, processes).lines()) + "\n"


def predict_stages(graph: LogicalGraph, chunks: Chunks, actors: Actors, plan: Plan, cluster: Cluster) -> Trace:
    """When the actors of a step would fire at the rates of a cluster."""
    costs = {chunk.key: cost_of(chunk, cluster) for chunk in chunks.all}
    return predict(actors.graph, actor_seconds(graph, chunks, actors, plan, costs, cluster))


class _Report:
    def __init__(self, graph: LogicalGraph, plan: Plan, cluster: Cluster, processes: int) -> None:
        assert plan.pipelining is not None
        self.graph, self.plan, self.stages = graph, plan, plan.pipelining
        self.chunks = cut(graph, plan)
        self.actors = make_actors(self.chunks, plan, processes)
        self._given = {chunk.key: chunk.gives for chunk in self.chunks.all}
        self.micro_batches = self.actors.graph.micro_batches
        self.costs = {chunk.key: cost_of(chunk, cluster) for chunk in self.chunks.all}
        seconds = actor_seconds(graph, self.chunks, self.actors, plan, self.costs, cluster)
        self.trace = predict(self.actors.graph, seconds)
        self.seconds: dict[Key, float] = {}
        self.registers: dict[Key, int] = {}
        for actor, key in self.actors.chunk_of.items():
            self.seconds[key] = max(self.seconds.get(key, 0.0), seconds[actor])
            self.registers[key] = max(self.registers.get(key, 0), self.actors.graph.by_name[actor].registers)

    def lines(self) -> Iterator[str]:
        graph, plan = expand(self.graph, self.plan)
        stages = f"{len(self.stages.meshes)} stages"
        how = (
            f"{stages} for {self.micro_batches} micro-batches" if self.stages.schedule else f"{stages} that take turns"
        )
        sharded = sum(any(sbp.is_split for sbp in layout) for _, layout in plan.variables)
        yield f"{how}, {len(graph.ops)} ops, {len(graph.variables)} variables ({sharded} sharded)"
        yield from self._stages()
        yield ""
        yield from self._chunks()
        if self.stages.order is not None:
            yield ""
            yield from self._schedule(self.stages, self.stages.order)
        yield ""
        yield from self._prediction()
        yield ""
        yield from self._crossings()
        yield ""
        yield from self._moves()
        yield ""
        yield from whole_lines(self.graph, "every device of their stage")
        yield from whole_in_spite(self.graph, self.plan)

    def _stages(self) -> Iterator[str]:
        stored = dict(self.plan.variables)
        for number, mesh in enumerate(self.stages.meshes):
            own = [v for v in self.graph.variables if self._home(v.handle) == number]
            held, _ = weights([(variable, stored[variable.name], mesh) for variable in own], once=False)
            devices = ", ".join(map(str, mesh.devices))
            sizes = dict.fromkeys(bytes_text(held.get(device, 0)) for device in mesh.devices)
            yield (
                f"stage {number} on device{'s' if len(mesh.devices) > 1 else ''} {devices} ({mesh.text()}): "
                f"{count_text(len(own), 'variable')}, {' or '.join(sizes)} of {'it' if len(own) == 1 else 'them'} "
                "on each device"
            )

    def _home(self, handle: int) -> int:
        return self.stages.stage_of[self.graph.tensors[handle].producer]

    def _chunks(self) -> Iterator[str]:
        total = sum(cost.flops for cost in self.costs.values()) or 1.0
        rows = [("chunk", "ops", "FLOPs", "one firing", "registers", "makes for others")]
        for key, cost in self.costs.items():
            share, registers = f"{cost.flops / total:.1%}", str(self.registers[key])
            seconds, made = seconds_text(self.seconds[key]), bytes_text(cost.nbytes)
            rows.append((str(key), str(cost.ops), share, seconds, registers, made))
        yield from table(rows)

    def _schedule(self, stages: Pipelining, order: Schedule) -> Iterator[str]:
        # A list of one's own is told by its lines alone.
        name = "" if "\n" in stages.schedule or " " in stages.schedule else f" {stages.schedule}"
        yield f"schedule{name}" + (", recomputing" if stages.recompute else "")
        yield from (f"  {line}" for line in str(order).splitlines())

    def _prediction(self) -> Iterator[str]:
        events = [event for event in self.trace.events if event.kind == "chunk"]
        step = max(event.end for event in self.trace.events)
        text = f"at the cluster's rates a step would take {seconds_text(step)}"
        each = [event for event in events if event.micro_batch is not None]
        if each:
            span = max(event.end for event in each) - min(event.begin for event in each)
            busy = sum(event.end - event.begin for event in each)
            bubble = 1 - busy / (span * len({event.queue for event in each})) if span else 0.0
            text += f", its micro-batches {seconds_text(span)} of that with a bubble of {bubble:.0%}"
        yield text

    def _crossings(self) -> Iterator[str]:
        crossings = find_crossings(self.graph, self.chunks, self.stages.meshes)
        total = sum(sum(c.nbytes) for c in crossings)
        yield f"{len(crossings)} tensors cross between stages, {bytes_text(total)} a step"
        borders: dict[tuple[Key, int, bool, bool], list[Crossing]] = {}
        for crossing in crossings:
            borders.setdefault((crossing.giver, crossing.to, crossing.each, crossing.joined), []).append(crossing)
        for (giver, to, each, joined), own in borders.items():
            step = sum(sum(c.nbytes) for c in own)
            once = sum(c.nbytes[0] for c in own)
            when = f"{bytes_text(once)} for each micro-batch, {bytes_text(step)}" if each else bytes_text(step)
            registers = self._receiving(giver, to, each)
            room = f", into {count_text(registers, 'register')}" if registers else ""
            yield f"{giver} -> stage {to}: {when} a step" + ", put together over the micro-batches" * joined + room
            yield from alike([self._crossing(c) for c in sorted(own, key=lambda c: -c.nbytes[0])])

    def _crossing(self, crossing: Crossing) -> tuple[str, str]:
        """A line, and what it shares with those that are like it."""
        tensor = crossing.give.tensor
        spec, source = self.graph.tensors[tensor], self.graph.source(self.graph.tensors[tensor].producer)
        start = f"  {format_layout(crossing.give.layout)}  {bytes_text(crossing.nbytes[0]):>10}  "
        line = start + tensor_text(self.graph, tensor) + (f"  {source}" if source else "")
        return line, f"{start}{spec.dtype}{spec.shape}{self.graph.ops[spec.producer].type}{source}"

    def _receiving(self, giver: Key, to: int, each: bool) -> int:
        """How many firings' tensors a rank can have received that its chunks still read; 0 in one process."""
        own = (
            self.actors.graph.by_name[self.actors.graph.receiver_of[sender]]
            for sender, pieces in self.actors.loads.items()
            if pieces[0].key == giver
        )
        return max((spec.registers for spec in own if spec.stage == to and (spec.phase == EACH) == each), default=0)

    def _moves(self) -> Iterator[str]:
        costs = self.costs.items()
        total = sum(nbytes * self._times(key) for key, cost in costs for _, nbytes in cost.moves)
        count = sum(len(cost.moves) for cost in self.costs.values())
        yield f"{count} boxings inside chunks send {bytes_text(total)} a step"
        for chunk in self.chunks.all:
            cost = self.costs[chunk.key]
            if cost.moves:
                once, times = sum(nbytes for _, nbytes in cost.moves), self._times(chunk.key)
                each = f"{bytes_text(once)} for each micro-batch, " if chunk.key.phase == EACH else ""
                yield f"{chunk.key}: {each}{bytes_text(once * times)} a step"
                yield from self._moves_of(chunk)

    def _moves_of(self, chunk: Chunk) -> Iterator[str]:
        """A line for each boxing; of what comes from another chunk it names the op that made it there."""
        graph, _ = expand(chunk.graph, chunk.plan)
        taken = zip(chunk.graph.inputs[len(chunk.arguments) :], chunk.takes, strict=True)
        given = {tensor: self._given[key][number].tensor for tensor, (key, number) in taken}
        for move, nbytes in self.costs[chunk.key].moves:
            if move.tensor in given:
                yield f"  {move_text(self.graph, replace(move, tensor=given[move.tensor], reader=-1), nbytes)}"
            else:
                yield f"  {move_text(graph, move, nbytes)}"

    def _times(self, key: Key) -> int:
        return self.micro_batches if key.phase == EACH else 1


def alike(lines: Sequence[tuple[str, str]]) -> Iterator[str]:
    """Of lines that share what is given with each the first, and how many more there are."""
    counts = Counter(shared for _, shared in lines)
    for line, shared in lines:
        if shared in counts:
            more = counts.pop(shared) - 1
            yield line + (f" and {more} more like it" if more else "")


def count_text(count: int, noun: str) -> str:
    """`1 register`, `2 registers`."""
    return f"{count} {noun}" + "s" * (count != 1)


def seconds_text(seconds: float) -> str:
    """`12.3 ms`."""
    for unit in ("us", "ms"):
        scaled = seconds * (1e6 if unit == "us" else 1e3)
        if scaled < 1000:
            return f"{scaled:.1f} {unit}"
    return f"{seconds:.1f} s"
