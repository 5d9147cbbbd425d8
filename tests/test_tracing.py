"""`wh.trace`: every firing is in the file, once, and stages are seen to work at the same time."""

from __future__ import annotations

import itertools
import json
import pathlib
from collections import Counter
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import whaleish as wh
from whaleish.chunks import cut
from whaleish.report.crossings import find_crossings
from whaleish.runtime import EACH

WIDTH, MICRO_BATCHES, STEPS = 768, 4, 2
SCHEDULE = "1f1b"


def make_step(stages: int) -> Any:
    """Stages of large products, so that each firing takes some milliseconds."""
    weights = [[tf.Variable(tf.eye(WIDTH)) for _ in range(2)] for _ in range(stages)]
    trained = [weight for own in weights for weight in own]

    @wh.function
    def train_step(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            with wh.pipeline(MICRO_BATCHES, SCHEDULE):
                for own in weights:
                    with wh.stage():
                        for weight in own:
                            x = tf.tanh(tf.matmul(x, weight))
            loss = tf.reduce_mean(x**2)
        for weight, gradient in zip(trained, tape.gradient(loss, trained), strict=True):
            weight.assign_sub(0.1 * gradient)
        return loss

    return train_step


def batch() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(MICRO_BATCHES * 256, WIDTH)).astype("float32")


def read(path: pathlib.Path) -> tuple[dict[int, str], dict[tuple[int, int], str], list[dict[str, Any]]]:
    """Of a file the names of processes, those of rows, and the events."""
    found = json.loads(path.read_text())["traceEvents"]
    processes = {e["pid"]: e["args"]["name"] for e in found if e["name"] == "process_name"}
    rows = {(e["pid"], e["tid"]): e["args"]["name"] for e in found if e["name"] == "thread_name"}
    events = [e for e in found if e["ph"] == "X"]
    assert {(e["pid"], e["tid"]) for e in events} == set(rows)
    return processes, rows, events


def inside(events: list[dict[str, Any]], step: dict[str, Any]) -> list[dict[str, Any]]:
    """The events of a step."""
    end = step["ts"] + step["dur"]
    return [e for e in events if e is not step and e["ts"] >= step["ts"] and e["ts"] + e["dur"] <= end]


def overlap(a: dict[str, Any], b: dict[str, Any]) -> float:
    """For how long two events go on at once, in microseconds."""
    return min(a["ts"] + a["dur"], b["ts"] + b["dur"]) - max(a["ts"], b["ts"])


def check_steps(events: list[dict[str, Any]], graph: Any, process: int) -> list[dict[str, Any]]:
    """Every step has every firing of a process once, one after another on each row; returns the last step's."""
    steps = sorted((e for e in events if e["cat"] == "step"), key=lambda e: e["ts"])
    assert [e["name"] for e in steps] == ["train_step"] * STEPS
    wanted = Counter(
        f"{spec.name} {number}" if spec.phase == EACH else spec.name
        for spec in graph.actors
        if graph.queue_of[spec.name].process == process
        for number in range(graph.firings(spec.name))
    )
    own: list[dict[str, Any]] = []
    for step in steps:
        own = inside(events, step)
        assert Counter(e["name"] for e in own) == wanted
        for row in {e["tid"] for e in own}:
            for a, b in itertools.pairwise(sorted((e for e in own if e["tid"] == row), key=lambda e: e["ts"])):
                assert overlap(a, b) <= 1e-3
    return own


def check_pipeline(events: list[dict[str, Any]]) -> None:
    """Forward before backward, stage after stage, and stages at the same time."""
    at = {(e["name"].split()[0], e["args"]["micro_batch"]): e for e in events if e["cat"] == "chunk"}
    for micro_batch in range(MICRO_BATCHES):
        ways = [at[name, micro_batch] for name in ("F0", "F1", "B1", "B0")]
        for a, b in itertools.pairwise(ways):
            assert a["ts"] + a["dur"] <= b["ts"] + 1e-3
    together = [
        overlap(at[a, i], at[b, j])
        for a, b in itertools.product(("F0", "B0"), ("F1", "B1"))
        for i, j in itertools.product(range(MICRO_BATCHES), repeat=2)
    ]
    assert max(together) > 1000, "no two stages were ever at work at the same time for a millisecond"


@pytest.mark.parametrize("world_of", [2], indirect=True)
def test_steps_in_one_process(world_of: int, tmp_path: pathlib.Path) -> None:
    step, x = make_step(2), batch()
    step(x)  # outside: not in the file
    with wh.trace(tmp_path / "step.json") as path:
        for _ in range(STEPS):
            step(x)
    step(x)
    assert path == tmp_path / "step.json"
    processes, rows, events = read(path)
    assert processes == {0: "this process", 1: "train_step, predicted"}
    assert {name for (process, _), name in rows.items() if process == 0} == {"steps", "devices 0", "devices 1"}
    graph = step.program_for(x).actors.graph
    last = check_steps([e for e in events if e["pid"] == 0], graph, 0)
    check_pipeline(last)
    by_name = {e["name"]: e["args"] for e in last}
    assert by_name["F0 1"]["device"] == "devices 0"
    assert by_name["F0 1"]["micro_batch"] == 1
    assert by_name["F0 1"]["bytes"] >= 256 * WIDTH * 4  # what it hands to the next stage, at least
    predicted = [e for e in events if e["pid"] == 1]
    assert Counter(e["name"] for e in predicted) == Counter(e["name"] for e in last)
    assert min(e["ts"] for e in predicted) == pytest.approx(min(e["ts"] for e in events if e["cat"] == "step"))
    check_pipeline(predicted)


@pytest.mark.ranks
def test_a_file_for_each_rank(ranks: Any, tmp_path: pathlib.Path) -> None:
    found = ranks.run(_on_rank, str(tmp_path / "step.json"), timeout=150)
    graph, sent = found[0][1:]
    assert [path for path, _, _ in found] == [str(tmp_path / f"step.rank{rank}.json") for rank in range(2)]
    everything = []
    for rank, (path, _, _) in enumerate(found):
        processes, _, events = read(pathlib.Path(path))
        names = [f"train_step, predicted, rank {other}" for other in range(2)]
        assert processes == {rank: f"rank {rank}", 2: names[0], 3: names[1]}
        predicted = [e for e in events if e["pid"] >= 2]
        own = [e for e in events if e["pid"] == rank]
        assert {e["cat"] for e in own} == {"step", "chunk", "send", "receive"}
        last = check_steps(own, graph, rank)
        assert {e["name"] for e in last} <= {e["name"] for e in predicted}
        everything += last
    check_pipeline(everything)  # one machine has one clock
    for kind in ("send", "receive"):
        assert sum(e["args"]["bytes"] for e in everything if e["cat"] == kind) == sent


def _on_rank(path: str) -> tuple[str, Any, int]:
    """The file, the actors, and how many bytes cross between the stages in a step, with the results."""
    wh.init()
    step, x = make_step(2), batch()
    step(x)
    with wh.trace(path) as own:
        for _ in range(STEPS):
            step(x)
    program = step.program_for(x)
    meshes = program.plan.pipelining.meshes
    crossings = find_crossings(program.capture.graph, cut(program.capture.graph, program.plan), meshes)
    loss = 4  # which comes to the rank that does not make it
    return str(own), program.actors.graph, sum(sum(c.nbytes) for c in crossings) + loss


@pytest.mark.parametrize("world_of", [2], indirect=True)
def test_a_step_without_stages_is_one_event(world_of: int, tmp_path: pathlib.Path) -> None:
    @wh.function
    def double(x: tf.Tensor) -> tf.Tensor:
        return x * 2

    with wh.trace(tmp_path / "a.json") as path:
        double(tf.ones([4]))
        double(tf.ones([4]))
    processes, rows, events = read(path)
    assert processes == {0: "this process"}
    assert list(rows.values()) == ["steps"]
    assert [(e["name"], e["cat"]) for e in events] == [("double", "step")] * 2


@pytest.mark.parametrize("world_of", [2], indirect=True)
def test_what_went_before_an_error_is_written(world_of: int, tmp_path: pathlib.Path) -> None:
    step, x = make_step(2), batch()

    def fail() -> None:
        with wh.trace(str(tmp_path / "a.json")):
            step(x)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    _, _, events = read(tmp_path / "a.json")
    assert [e["name"] for e in events if e["cat"] == "step"] == ["train_step"]
    with wh.trace(tmp_path / "b.json"):  # the next one is its own
        pass
    assert read(tmp_path / "b.json")[2] == []


@pytest.mark.parametrize("world_of", [1], indirect=True)
def test_wrong_uses(world_of: int, tmp_path: pathlib.Path) -> None:
    with (
        pytest.raises(FileNotFoundError, match=r"there is no folder '.*/missing'; make it first"),
        wh.trace(tmp_path / "missing" / "a.json"),
    ):
        pass
    with (
        wh.trace(tmp_path / "a.json"),
        pytest.raises(RuntimeError, match="one is written at a time"),
        wh.trace(tmp_path / "b.json"),
    ):
        pass
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json"]
