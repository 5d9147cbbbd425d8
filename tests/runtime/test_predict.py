"""Predictions agree with the timelines of schedules, and with what really runs."""

import itertools
import time
from typing import Any

import pytest

from tests.runtime.graphs import LIMIT, within
from tests.runtime.pipelines import forwards_as_scheduled, pipeline, with_registers
from whaleish.runtime import ActorGraph, Chunk, DeadlockError, Executor, Trace, check, predict, with_room
from whaleish.schedule import Costs, Schedule, make_schedule, one_f_one_b, timeline

SIZES = [
    ("gpipe", 3, 5),
    ("1f1b", 1, 3),
    ("1f1b", 4, 2),
    ("1f1b", 4, 8),
    ("zb-h1", 4, 8),
    ("interleaved(2)", 8, 8),
    ("interleaved(3)", 6, 5),
]


def seconds_of(schedule: Schedule, graph: ActorGraph, costs: Costs) -> dict[str, float]:
    """The seconds of each actor of a pipeline; a transfer takes them at both ends."""
    found = {}
    for spec in graph.actors:
        kind, _, number = spec.name.partition(" ")
        if kind in ("send", "receive"):
            found[spec.name] = float(costs.transfer)
        elif kind in ("forward", "backward", "weight"):
            stage = int(number.partition(".")[0])
            whole = kind == "backward" and not schedule.splits_backward(stage)
            found[spec.name] = getattr(costs, kind) + (costs.weight if whole else 0.0)
    return found


def makespan(trace: Trace) -> float:
    return max(event.end for event in trace.events) - min(event.begin for event in trace.events)


@pytest.mark.parametrize(("name", "stages", "micro_batches"), SIZES)
def test_with_room_a_step_takes_what_its_timeline_says(name: str, stages: int, micro_batches: int) -> None:
    schedule = make_schedule(name, stages, micro_batches)
    for costs, transfers, width in itertools.product((Costs(), Costs(3, 2, 1), Costs(1, 1, 1, 0.5)), (0, 1), (1, 2)):
        if costs.transfer and (not transfers or name.startswith("interleaved")):
            continue  # in a timeline all transfers to one device share a link; here each has its own queues
        narrow = pipeline(schedule, width=width, ordered=True, transfers=bool(transfers))
        seconds = seconds_of(schedule, narrow, costs)
        graph = with_room(narrow, seconds)
        check(graph)
        assert makespan(predict(graph, seconds)) == pytest.approx(timeline(schedule, costs).makespan)
        for spec in graph.actors:
            assert spec.registers <= graph.firings(spec.name)
            if spec.name.startswith("forward") and not transfers:
                assert spec.registers == schedule.registers(int(spec.name[8:].partition(".")[0]))


def test_one_register_gets_through_and_two_are_faster() -> None:
    """A backward cannot begin the next micro-batch while the stage before still reads the last one."""
    schedule = one_f_one_b(4, 8)
    graph = pipeline(schedule, forwards_as_scheduled(schedule), ordered=True)
    seconds = seconds_of(schedule, graph, Costs())
    ideal = timeline(schedule, Costs()).makespan
    assert makespan(predict(graph, seconds)) > 1.1 * ideal
    two = with_registers(graph, {f"backward {stage}.0": 2 for stage in range(4)})
    assert makespan(predict(two, seconds)) == pytest.approx(ideal)
    assert all(spec.registers <= 2 for spec in with_room(graph, seconds).actors if spec.name.startswith("back"))


def test_a_prediction_of_what_cannot_run() -> None:
    with pytest.raises(DeadlockError):
        predict(pipeline(one_f_one_b(3, 8), width=2), {})


def test_the_order_of_a_run_is_the_predicted_one() -> None:
    schedule = make_schedule("zb-h1", 3, 4)
    graph = pipeline(schedule, ordered=True, transfers=True)
    seconds = {name: 0.01 * unit for name, unit in seconds_of(schedule, graph, Costs()).items()}
    graph = with_room(graph, seconds)

    def chunk(name: str) -> Chunk:
        def work(inputs: list[Any], firing: int) -> list[Any]:
            time.sleep(seconds.get(name, 0.0))
            return [0, 0]

        return Chunk(work)

    real = Trace()
    names = [name for name in graph.by_name if not name.startswith(("send", "receive"))]
    runner = Executor(graph, {name: chunk(name) for name in names})
    within(LIMIT, lambda: runner.run({"batch": range(4)}, real))
    predicted = predict(graph, seconds)
    for queue in graph.queues:
        firings = [
            [(e.name, e.micro_batch) for e in sorted(trace.events, key=lambda e: e.begin) if e.queue == queue.name]
            for trace in (real, predicted)
        ]
        assert firings[0] == firings[1]
    assert makespan(real) >= 0.99 * makespan(predicted)
    overlapping = [
        (a.name, b.name)
        for a, b in itertools.combinations([e for e in real.events if e.kind == "chunk"], 2)
        if a.queue != b.queue and min(a.end, b.end) - max(a.begin, b.begin) > 0.002
    ]
    assert len(overlapping) > 4  # stages do work at the same time
