"""Actor graphs of pipelines, from schedules."""

from collections.abc import Callable
from dataclasses import replace

from hypothesis import strategies as st

from whaleish.runtime import AFTER, BEFORE, EACH, ActorGraph, ActorSpec, Feed, Queue, Read, firing_order
from whaleish.schedule import Action, Schedule

KINDS = {"F": "forward", "B": "backward", "W": "weight"}


def pipeline(
    schedule: Schedule,
    registers: Callable[[str, int], int] = lambda kind, stage: 1,
    width: int = 1,
    ordered: bool | None = None,
    transfers: bool = False,
    skips: tuple[tuple[int, int], ...] = (),
) -> ActorGraph:
    """Forward, backward and update of every stage, with activations passed on and gradients passed back.

    Args:
      registers: of the chunks "forward", "backward" and "weight" of a stage.
      width: how many devices share each stage; their chunks meet in every firing.
      ordered: whether devices keep to the schedule; by default they do where they share chunks.
      transfers: between stages, each with queues of its own; otherwise stages read each other's registers.
      skips: (earlier, later) stages of which the later reads the earlier's activations, and returns a gradient.
    """
    keep = width > 1 if ordered is None else ordered
    actors: list[ActorSpec] = []
    queues: list[Queue] = []

    def passed(source: str, target: str) -> Read:
        """What a stage reads from another one."""
        if not transfers:
            return Read(source)
        send, receive = f"send {source} to {target}", f"receive {source} at {target}"
        actors.append(ActorSpec(send, send, (Read(source),)))
        actors.append(ActorSpec(receive, receive, receives=send))
        queues.extend([Queue(send), Queue(receive)])
        return Read(receive)

    stages, groups = range(schedule.stages), []
    pairs = [*((stage - 1, stage) for stage in stages[1:]), *skips]

    def add(kind: str, stage: int, others: dict[str, list[int]]) -> None:
        """The chunk of a kind on all devices of a stage; `others` has the stages that it reads, by kind."""
        names = [f"{kind} {stage}.{k}" for k in range(width)]
        for k, name in enumerate(names):
            inputs: list[Read | Feed] = [Read(f"start {k}")] if kind == "forward" else []
            for other, numbers in others.items():
                for number in numbers:
                    source = f"{other} {number}.{k}"
                    inputs.append(Read(source) if number == stage else passed(source, name))
            if kind == "forward" and stage == 0:
                inputs.append(Feed("batch"))
            held = registers(kind, stage)
            actors.append(
                ActorSpec(name, f"device {schedule.places[stage]}.{k}", tuple(inputs), EACH, held, None, stage)
            )
        if width > 1:
            groups.append(tuple(names))

    for k in range(width):  # what all stages read, once: a tied weight
        actors.append(ActorSpec(f"start {k}", f"device {schedule.places[0]}.{k}", (), BEFORE))
    for stage in stages:
        add("forward", stage, {"forward": [a for a, b in pairs if b == stage]})
    for stage in reversed(stages):
        add("backward", stage, {"forward": [stage], "backward": [b for a, b in pairs if a == stage]})
        if schedule.splits_backward(stage):
            add("weight", stage, {"forward": [stage], "backward": [stage]})
    for stage in stages:
        last = "weight" if schedule.splits_backward(stage) else "backward"
        for k in range(width):
            queue, summed = f"device {schedule.places[stage]}.{k}", Read(f"{last} {stage}.{k}", 1)
            actors.append(ActorSpec(f"update {stage}.{k}", queue, (summed,), AFTER, stage=stage))
    for device in range(len(schedule.devices)):
        here = [stage for stage in stages if schedule.places[stage] == device]
        for k in range(width):

            def carried_out(action: Action, k: int = k) -> list[str]:
                return [f"{KINDS[action.kind]} {action.stage}.{k}"]

            order = firing_order(
                schedule.computes(device),
                carried_out,
                before=[f"start {k}"] * (device == schedule.places[0]),
                after=[f"update {stage}.{k}" for stage in here],
            )
            queues.append(Queue(f"device {device}.{k}", order, keep))
    results = tuple(Read(spec.name) for spec in actors if spec.name.startswith(("update", "backward 0")))
    return ActorGraph(tuple(actors), tuple(queues), schedule.micro_batches, tuple(groups), results)


def forwards_as_scheduled(schedule: Schedule) -> Callable[[str, int], int]:
    """As many registers for a forward as micro-batches are live on its stage, and one for all others."""
    return lambda kind, stage: schedule.registers(stage) if kind == "forward" else 1


def with_registers(graph: ActorGraph, counts: dict[str, int]) -> ActorGraph:
    actors = (replace(spec, registers=counts.get(spec.name, spec.registers)) for spec in graph.actors)
    return replace(graph, actors=tuple(actors))


@st.composite
def scheduled(draw: st.DrawFn) -> tuple[Schedule, ActorGraph]:
    """A pipeline in any order that dataflow allows, with any registers."""
    stages, micro_batches = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    places = draw(st.lists(st.integers(0, 2), min_size=stages, max_size=stages))
    numbers = {device: k for k, device in enumerate(sorted(set(places)))}
    chains = [
        [Action("F", m, s) for s in range(stages)] + [Action("B", m, s) for s in reversed(range(stages))]
        for m in range(micro_batches)
    ]
    lists: list[list[Action]] = [[] for _ in numbers]
    while any(chains):
        # Micro-batches stay in order on each stage, as an actor's firings do.
        free = [k for k, chain in enumerate(chains) if chain and all(len(c) < len(chain) for c in chains[:k])]
        action = chains[draw(st.sampled_from(free))].pop(0)
        lists[numbers[places[action.stage]]].append(action)
    schedule = Schedule(tuple(map(tuple, lists)))
    counts = draw(st.lists(st.integers(1, 3), min_size=2 * stages, max_size=2 * stages))
    graph = pipeline(
        schedule,
        lambda kind, stage: counts[2 * stage + (kind == "forward")],
        width=draw(st.integers(1, 2)),
        ordered=draw(st.sampled_from([None, True])),
        transfers=draw(st.booleans()),
        skips=((0, 2),) if stages == 3 and draw(st.booleans()) else (),
    )
    return schedule, graph
