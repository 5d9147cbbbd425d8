"""Stages: what the user's `stage` and `pipeline` scopes say of devices, micro-batches and their order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from whaleish.graph import LogicalGraph, Scope, ScopePath
from whaleish.mesh import Mesh
from whaleish.planner.roles import PlanError, is_axis
from whaleish.schedule import Action, Schedule, make_schedule
from whaleish.scopes.nesting import written

DEFAULT_SCHEDULE = "1f1b"


@dataclass(frozen=True)
class Stages:
    """The stages of a step, in the order in which its code enters them.

    Attributes:
      scopes: of each stage the path down to its `stage` scope.
      of_path: for each scope path of the graph the stage that it is in, or None.
      devices: of each stage.
      micro_batches: 0 without a pipeline.
      schedule: as given; recompute: whether a stage's backward runs its forward again.
    """

    scopes: tuple[ScopePath, ...]
    of_path: tuple[int | None, ...]
    devices: tuple[tuple[int, ...], ...]
    micro_batches: int = 0
    schedule: str = ""
    recompute: bool = False

    @property
    def count(self) -> int:
        return len(self.scopes)

    def mesh(self, stage: int, mesh: Mesh) -> Mesh:
        """A mesh of as many devices on those of a stage."""
        return replace(mesh, devices=self.devices[stage])


def find_stages(graph: LogicalGraph, size: int) -> Stages | None:
    """The stages that the scopes of a graph ask for on `size` devices; None if they ask for none.

    Stages share the devices evenly, neighbours beside each other: of 8 devices two stages get 0-3 and 4-7. Inside
    `replica(2)` each replica has stages of its own: 0-1 and 4-5, 2-3 and 6-7. Under `interleaved(v)` v stages share
    one group.

    Raises:
      PlanError: there are fewer devices than stages, or scopes that contradict each other.
    """
    scopes: list[ScopePath] = []
    entered = {op.scope: None for op in graph.ops}
    for number in entered:
        found = _down_to_stage(graph.scopes[number])
        if found and found not in scopes:
            scopes.append(found)
    scopes.sort(key=lambda path: path[-1].number)  # what is entered first may run after: a model's branches do
    pipelines = [path for path in map(_down_to_pipeline, (graph.scopes[number] for number in entered)) if path]
    if pipelines and not scopes:
        count = pipelines[0][-1].option("micro_batches")
        raise PlanError(
            f"{_text(graph, pipelines[0][-1])} has no wh.stage() with ops inside, so nothing to run stage by stage. "
            f"Put the parts of the model under wh.stage(), or write wh.accumulate({count}) for micro-batches without "
            "stages"
        )
    if not scopes:
        return None
    pipeline = _pipeline(graph, scopes, list(dict.fromkeys(pipelines)))
    micro_batches = int(pipeline.option("micro_batches")) if pipeline else 0
    schedule = str(pipeline.option("schedule", DEFAULT_SCHEDULE)) if pipeline else ""
    order = _order(graph, pipeline, schedule, len(scopes)) if pipeline else None
    return Stages(
        scopes=tuple(scopes),
        of_path=tuple(
            scopes.index(found) if (found := _down_to_stage(path)) in scopes else None for path in graph.scopes
        ),
        devices=_devices(graph, scopes, size, order),
        micro_batches=micro_batches,
        schedule=schedule,
        recompute=bool(pipeline and pipeline.option("recompute", False)),
    )


def _down_to(path: ScopePath, kind: str) -> ScopePath:
    return next((path[: place + 1] for place, scope in enumerate(path) if scope.kind == kind), ())


def _down_to_stage(path: ScopePath) -> ScopePath:
    return _down_to(path, "stage")


def _down_to_pipeline(path: ScopePath) -> ScopePath:
    return _down_to(path, "pipeline")


def _pipeline(graph: LogicalGraph, scopes: list[ScopePath], pipelines: list[ScopePath]) -> Scope | None:
    """The pipeline that all stages are in, if any is."""
    if not pipelines:
        return None
    if len(pipelines) > 1:
        raise PlanError(
            f"the step enters {' and '.join(_text(graph, path[-1]) for path in pipelines[:2])}: a step has one "
            "pipeline. Put all stages into one wh.pipeline(), or make two steps"
        )
    for number, path in enumerate(scopes):
        if _down_to_pipeline(path) != pipelines[0]:
            raise PlanError(
                f"{_stage(graph, scopes, number)} is outside {_text(graph, pipelines[0][-1])}, which other stages are "
                "in. Put all stages of a step inside one wh.pipeline(), or none"
            )
    return pipelines[0][-1]


def _order(graph: LogicalGraph, pipeline: Scope, schedule: str, stages: int) -> Schedule:
    try:
        made = make_schedule(schedule, stages, int(pipeline.option("micro_batches")))
        for device, actions in enumerate(made.devices):
            last: dict[tuple[str, int], Action] = {}
            for action in actions:
                before = last.setdefault((action.kind, action.stage), action)
                if action.micro_batch < before.micro_batch:
                    raise ValueError(
                        f"device {device} has {action} after {before}, and micro-batches go through a stage in order; "
                        "let the lower one go first"
                    )
                last[action.kind, action.stage] = action
        return made
    except ValueError as error:
        where = graph.begin(pipeline)
        raise PlanError(f"wh.pipeline(schedule={schedule!r}) with {stages} stages{where}: {error}") from error


def _devices(
    graph: LogicalGraph, scopes: list[ScopePath], size: int, order: Schedule | None
) -> tuple[tuple[int, ...], ...]:
    """The devices of each stage."""
    given = [path[-1].option("devices") for path in scopes]
    if any(devices is not None for devices in given):
        chosen = _stated(graph, scopes, given, size)
        if order is not None:
            _check_places(graph, scopes, chosen, order)
        return chosen
    groups = len(order.devices) if order else len(scopes)
    places = order.places if order else tuple(range(len(scopes)))
    degrees = [prod(_degree(graph, scope) for scope in path[:-1]) for path in scopes]
    odd = next((number for number, degree in enumerate(degrees) if degree != degrees[0]), None)
    if odd is not None:
        raise PlanError(
            f"{_stage(graph, scopes, 0)} and {_stage(graph, scopes, odd)} are inside {degrees[0]} and {degrees[odd]} "
            "replicas: the stages of a step are inside the same scopes. Put wh.replica() round all of them, or inside "
            "each"
        )
    outer = degrees[0]
    inside, rest = divmod(size, groups * outer)
    if rest or not inside:
        replicas = f" in each of {outer} replicas" if outer > 1 else ""
        raise PlanError(
            f"{len(scopes)} stages{graph.begin(scopes[0][-1])} on {groups} groups of devices{replicas} cannot share "
            f"{size} device{'' if size == 1 else 's'} evenly. Call wh.init() with a multiple of {groups * outer} "
            "devices, make fewer stages, or give each its own: wh.stage(devices=[0, 1])"
        )
    own = [
        [(replica * groups + group) * inside + k for replica in range(outer) for k in range(inside)]
        for group in range(groups)
    ]
    return tuple(tuple(own[place]) for place in places)


def _stated(
    graph: LogicalGraph, scopes: list[ScopePath], given: list[tuple[int, ...] | None], size: int
) -> tuple[tuple[int, ...], ...]:
    missing = [number for number, devices in enumerate(given) if devices is None]
    if missing:
        raise PlanError(
            f"{_stage(graph, scopes, missing[0])} names no devices and other stages do: give all stages devices, or "
            "none of them"
        )
    chosen = [tuple(devices) for devices in given if devices is not None]
    named = {device for devices in chosen for device in devices}
    for path, devices in zip(scopes, chosen, strict=True):
        if max(devices) >= size:
            raise PlanError(
                f"{_text(graph, path[-1])}: there {'is 1 device' if size == 1 else f'are {size} devices'}, numbered 0 "
                f"to {size - 1}. Name some of these, or call wh.init() with more"
            )
    for number, devices in enumerate(chosen):
        if list(devices) != sorted(devices):
            raise PlanError(
                f"{_stage(graph, scopes, number)}: devices={list(devices)}: name them in ascending order, "
                f"{sorted(devices)}"
            )
        for other, theirs in enumerate(chosen[:number]):
            if set(devices) & set(theirs) and devices != theirs:
                raise PlanError(
                    f"{_stage(graph, scopes, other)} and {_stage(graph, scopes, number)} share some of their devices, "
                    f"{list(theirs)} and {list(devices)}: two stages are on the same devices, or on different ones"
                )
    idle = sorted(set(range(size)) - named)
    if idle:
        raise PlanError(
            f"the stages{graph.begin(scopes[0][-1])} leave the devices {idle} without work; name all {size} devices, "
            "or call wh.init() with fewer"
        )
    return tuple(chosen)


def _check_places(
    graph: LogicalGraph, scopes: list[ScopePath], chosen: Sequence[tuple[int, ...]], order: Schedule
) -> None:
    """Refuses devices by which stages are apart that the schedule has on the same ones."""
    first: dict[int, int] = {}
    for number, place in enumerate(order.places):
        other = first.setdefault(place, number)
        if chosen[other] != chosen[number]:
            raise PlanError(
                f"{_stage(graph, scopes, other)} and {_stage(graph, scopes, number)} are on the same devices by their "
                f"schedule, and name {list(chosen[other])} and {list(chosen[number])}. Name the same for both, or take "
                "a schedule by which each stage has devices of its own (1f1b)"
            )


def _degree(graph: LogicalGraph, scope: Scope) -> int:
    """How many groups of devices a scope round stages makes."""
    if not is_axis(scope):
        return 1
    degree = scope.option("degree")
    if degree is None:
        raise PlanError(
            f"{_text(graph, scope)} is round stages, and how many devices it leaves to each cannot be inferred. Give "
            f"it a degree: wh.{scope.kind}(2)"
        )
    return int(degree)


def _text(graph: LogicalGraph, scope: Scope) -> str:
    """A scope as the user wrote it, and where."""
    return written(scope.kind, scope.options) + graph.begin(scope)


def _stage(graph: LogicalGraph, scopes: list[ScopePath], number: int) -> str:
    return f"stage {number}{graph.begin(scopes[number][-1])}"
