"""Runs: phases and rates, running sums, two processes, failures that end promptly, traces."""

import itertools
import json
import os
import pathlib
import re
import signal
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.runtime.graphs import LIMIT, within
from whaleish.runtime import (
    AFTER,
    BEFORE,
    Aborted,
    ActorGraph,
    ActorSpec,
    Chunk,
    Executor,
    Feed,
    InProcess,
    Queue,
    Read,
    StageError,
    Trace,
    Transfer,
)

CHAIN = ActorGraph(
    (
        ActorSpec("weights", "0", (Feed("scale"),), BEFORE),
        ActorSpec("forward 0", "0", (Feed("batch"), Read("weights")), registers=2, stage=0),
        ActorSpec("forward 1", "1", (Read("forward 0"),), stage=1, source="train.py:24"),
        ActorSpec("accumulate", "1", (Read("forward 1"),), stage=1),
        ActorSpec("update", "1", (Read("accumulate"), Read("forward 0", every=True)), AFTER, stage=1),
    ),
    (Queue("0"), Queue("1")),
    4,
    results=(Read("update"), Read("forward 1")),
)


def chain(forward: Callable[[int], int] = lambda x: x + 1) -> dict[str, Chunk]:
    return {
        "weights": Chunk(lambda inputs, _: [10 * inputs[0]]),
        "forward 0": Chunk(lambda inputs, _: [inputs[0] * inputs[1]]),
        "forward 1": Chunk(lambda inputs, _: [forward(inputs[0])]),
        "accumulate": Chunk(lambda inputs, _: [inputs[0] + inputs[1]], state=lambda: [0]),
        "update": Chunk(lambda inputs, _: [tuple(inputs)]),
    }


def with_four_registers(graph: ActorGraph) -> ActorGraph:
    """Room for all values of "forward 0", which "update" reads."""
    actors = (ActorSpec(**{**vars(s), "registers": 4}) if s.name == "forward 0" else s for s in graph.actors)
    return ActorGraph(tuple(actors), graph.queues, graph.micro_batches, graph.groups, graph.results)


FEEDS = {"scale": [1], "batch": [1, 2, 3, 4]}


def test_phases_rates_and_running_sums() -> None:
    runner = Executor(with_four_registers(CHAIN), chain())
    for _ in range(2):  # a second run begins with a new state
        results = within(LIMIT, lambda: runner.run(FEEDS))
        assert results == {Read("update"): [(104, [10, 20, 30, 40])], Read("forward 1"): [11, 21, 31, 41]}


def test_values_live_no_longer_than_their_registers() -> None:
    """Also not in a thread that waits: of 20 arrays no more exist at once than are held or being made and read."""
    made: list[weakref.ref[np.ndarray]] = []
    alive: list[int] = []

    def make(inputs: list[Any], firing: int) -> list[Any]:
        alive.append(sum(ref() is not None for ref in made))
        outputs = [np.zeros(3)]
        made.append(weakref.ref(outputs[0]))
        return outputs

    actors = (ActorSpec("a", "0", registers=2), ActorSpec("b", "1", (Read("a"),)))
    graph = ActorGraph(actors, (Queue("0"), Queue("1")), 20)
    Executor(graph, {"a": Chunk(make), "b": Chunk(lambda inputs, _: time.sleep(0.002) or [])}).run()
    assert max(alive) <= 1  # the other register is being filled
    assert not any(ref() is not None for ref in made)


def test_every_value_needs_a_register_for_each() -> None:
    said = (
        r"'forward 0' at micro-batch 2 waits for one of its 2 registers, as 'update' has not read .* at micro-batch 0\n"
        r".*'update' waits for 4 outputs of 'forward 0'\n"
        r"To break the circle, give 'forward 0' more registers than 2: 'update' reads 4"
    )
    with pytest.raises(ValueError, match=said):
        Executor(CHAIN, chain())


def test_chunks_and_feeds_that_do_not_fit() -> None:
    graph = with_four_registers(CHAIN)
    chunks = chain()
    with pytest.raises(ValueError, match="'update' has no work"):
        Executor(graph, {name: chunk for name, chunk in chunks.items() if name != "update"})
    with pytest.raises(ValueError, match="'forward 2' is none of them"):
        Executor(graph, {**chunks, "forward 2": chunks["update"]})
    runner = Executor(graph, chunks)
    with pytest.raises(ValueError, match="the feed 'batch' has 3 values, and needs 4"):
        runner.run({"scale": [1], "batch": [1, 2, 3]})
    with pytest.raises(ValueError, match="the feed 'scale' has 0 values, and needs 1"):
        runner.run()


def fail_at(value: int) -> Callable[[int], int]:
    def forward(x: int) -> int:
        if x == value:
            raise ZeroDivisionError("no")  # the line that the error names
        return x

    return forward


def test_a_chunk_that_fails() -> None:
    runner = Executor(with_four_registers(CHAIN), chain(fail_at(30)))
    began = time.monotonic()
    with pytest.raises(StageError) as caught:
        within(LIMIT, lambda: runner.run(FEEDS))
    assert time.monotonic() - began < 5
    error = caught.value
    assert (error.chunk, error.stage, error.micro_batch) == ("forward 1", 1, 2)
    assert isinstance(error.__cause__, ZeroDivisionError)
    line = next(
        n for n, text in enumerate(pathlib.Path(__file__).read_text().splitlines(), 1) if "the line that" in text
    )
    assert re.fullmatch(
        rf"chunk 'forward 1' of stage 1 failed at micro-batch 2, .*test_executor\.py:{line}: ZeroDivisionError: no",
        str(error),
    )
    assert not _threads_of(CHAIN)
    assert within(LIMIT, lambda: Executor(with_four_registers(CHAIN), chain()).run(FEEDS))


def test_the_line_of_the_stage_where_the_chunk_has_none() -> None:
    """As in a compiled function, whose Python is long gone."""
    exec("def work(inputs, firing): raise OSError('disk full')", compiled := {})
    chunks = {**chain(), "forward 1": Chunk(compiled["work"])}
    with pytest.raises(StageError, match=r"at micro-batch 0, train\.py:24: OSError: disk full$"):
        Executor(with_four_registers(CHAIN), chunks).run(FEEDS)


def test_too_few_outputs() -> None:
    with pytest.raises(StageError, match=r"failed at micro-batch 0, .* returned 0 outputs; 1 are read"):
        Executor(with_four_registers(CHAIN), {**chain(), "forward 1": Chunk(lambda inputs, _: [])}).run(FEEDS)


def test_a_failure_before_or_after_the_micro_batches_says_so() -> None:
    for name, when in (("weights", "before"), ("update", "after")):
        chunks = {**chain(), name: Chunk(lambda inputs, _: 1 // 0)}
        with pytest.raises(StageError, match=f"chunk {name!r}.* failed {when} the micro-batches, .*division") as caught:
            within(LIMIT, lambda chunks=chunks: Executor(with_four_registers(CHAIN), chunks).run(FEEDS))
        assert caught.value.micro_batch is None


def test_a_failure_wakes_those_who_wait_for_transfers_and_lets_those_end_who_work() -> None:
    actors = (
        ActorSpec("slow", "0", registers=4),
        ActorSpec("fails", "1"),
        ActorSpec("next", "2", (Read("fails"),)),
        ActorSpec("send", "3", (Read("fails"),)),
        ActorSpec("receive", "4", receives="send"),
    )
    graph = ActorGraph(actors, tuple(map(Queue, "01234")), 4)
    ended, working = threading.Event(), threading.Event()

    def slow(inputs: list[Any], firing: int) -> list[Any]:
        working.set()
        time.sleep(0.3)
        ended.set()
        return []

    def fails(inputs: list[Any], firing: int) -> list[Any]:
        working.wait()
        raise KeyError("gone")

    chunks = {"slow": Chunk(slow), "fails": Chunk(fails), "next": Chunk(lambda inputs, _: [])}
    with pytest.raises(StageError, match="chunk 'fails' failed at micro-batch 0") as caught:
        within(LIMIT, lambda: Executor(graph, chunks).run())
    assert ended.is_set()
    assert not hasattr(caught.value, "__notes__")
    assert not _threads_of(graph)


def test_a_chunk_that_never_ends_does_not_hold_up_the_error() -> None:
    graph = ActorGraph((ActorSpec("stuck", "0"), ActorSpec("fails", "1")), (Queue("0"), Queue("1")), 1)
    working, leave = threading.Event(), threading.Event()

    def stuck(inputs: list[Any], firing: int) -> list[Any]:
        working.set()
        leave.wait()
        return []

    def fails(inputs: list[Any], firing: int) -> list[Any]:
        working.wait()
        raise ValueError

    runner = Executor(graph, {"stuck": Chunk(stuck), "fails": Chunk(fails)}, patience=0.2)
    with pytest.raises(StageError) as caught:
        within(LIMIT, runner.run)
    assert caught.value.__notes__ == ["queue '0' has not ended within 0.2 s: its chunk still runs"]
    leave.set()


def test_two_failures_are_both_told() -> None:
    graph = ActorGraph((ActorSpec("a", "0"), ActorSpec("b", "1")), (Queue("0"), Queue("1")), 1)
    both = threading.Barrier(2)

    def fails(inputs: list[Any], firing: int) -> list[Any]:
        both.wait()
        raise ValueError("bad")

    with pytest.raises(StageError) as caught:
        within(LIMIT, lambda: Executor(graph, {"a": Chunk(fails), "b": Chunk(fails)}).run())
    assert len(caught.value.__notes__) == 1
    assert caught.value.__notes__[0].startswith("meanwhile: chunk ")


TWO = ActorGraph(
    (
        ActorSpec("forward", "0", (Feed("batch"),), registers=2),
        ActorSpec("send there", "0 out", (Read("forward"),)),
        ActorSpec("receive there", "1 in", registers=2, receives="send there"),
        ActorSpec("loss", "1", (Read("receive there"),)),
        ActorSpec("send back", "1 out", (Read("loss"),)),
        ActorSpec("receive back", "0 in", receives="send back"),
        ActorSpec("backward", "0", (Read("forward"), Read("receive back"))),
    ),
    tuple(Queue(name, process=int(name[0])) for name in ("0", "0 out", "0 in", "1", "1 in", "1 out")),
    6,
    results=(Read("loss"), Read("backward")),
)


def two_processes(loss: Callable[[int], int], trace: Trace | None = None) -> list[Any]:
    """What each of two processes returns or raises; here they are two executors that share a transport."""
    transport = InProcess()
    works = [
        {"forward": Chunk(lambda inputs, _: [inputs[0] * 2]), "backward": Chunk(lambda inputs, _: [sum(inputs)])},
        {"loss": Chunk(lambda inputs, _: [loss(inputs[0])])},
    ]
    outcomes: list[Any] = [None, None]

    def go(process: int) -> None:
        runner = Executor(TWO, works[process], process=process, transport=transport)
        try:
            outcomes[process] = runner.run({"batch": range(6)}, trace)
        except Exception as error:
            outcomes[process] = error

    threads = [threading.Thread(target=go, args=(process,), daemon=True) for process in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
        assert not thread.is_alive()
    return outcomes


def test_two_processes() -> None:
    losses = [100 + 2 * k for k in range(6)]
    assert two_processes(lambda x: x + 100) == [
        {Read("backward"): [2 * k + loss for k, loss in enumerate(losses)]},
        {Read("loss"): losses},
    ]


def test_a_failure_in_one_process_ends_the_other() -> None:
    here, there = two_processes(fail_at(6))
    assert "chunk 'loss' failed at micro-batch 3" in str(there)
    assert isinstance(here.__cause__, Aborted)
    assert re.match(
        r"(send 'send there'|receive 'receive back') failed at micro-batch \d: Aborted: the run has", str(here)
    )


def test_transfers_of_one_name_follow_each_other() -> None:
    transport, name = InProcess(), Transfer("a", "b", 0, 0)
    assert str(name) == "a>b.0"
    first = transport.post_send(name, [1])
    assert not first.done.is_set()
    assert transport.wait(transport.post_receive(name)) == transport.wait(first) == [1]
    waiting = transport.post_receive(name)
    transport.post_send(name, [])
    assert transport.wait(waiting) == []
    left = transport.post_receive(name)
    transport.abort()
    for posted in (
        left,
        transport.post_receive(Transfer("a", "b", 1, 1)),
        transport.post_send(Transfer("a", "c", 0, 0), [1]),
    ):
        with pytest.raises(Aborted):
            transport.wait(posted)


def test_trace(tmp_path: pathlib.Path) -> None:
    trace = Trace()
    two_processes(lambda x: np.zeros(10, "float32"), trace)
    assert {event.kind for event in trace.events} == {"chunk", "send", "receive"}
    assert len(trace.events) == 7 * 6
    for event in trace.events:
        assert event.begin <= event.end
        assert event.nbytes == (40 if event.name in ("loss", "send back", "receive back", "backward") else 0)
    trace.save(tmp_path / "trace.json")
    written = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    named = {(entry["pid"], entry["tid"]): entry["args"]["name"] for entry in written if entry["ph"] == "M"}
    assert sorted(named.values()) == sorted(queue.name for queue in TWO.queues)
    fired = [entry for entry in written if entry["ph"] == "X"]
    assert min(entry["ts"] for entry in fired) == 0
    assert {entry["name"] for entry in fired if entry["cat"] == "chunk"} == {
        f"{name} {k}" for name in ("forward", "loss", "backward") for k in range(6)
    }
    for entry in fired:
        assert named[entry["pid"], entry["tid"]] == entry["args"]["device"]
        assert entry["pid"] == int(entry["args"]["device"][0])
        assert entry["dur"] >= 0
    for queue in TWO.queues:  # one at a time
        spans = sorted((e["ts"], e["ts"] + e["dur"]) for e in fired if e["args"]["device"] == queue.name)
        assert all(a[1] <= b[0] + 1e-3 for a, b in itertools.pairwise(spans))


def test_ctrl_c() -> None:
    """The main thread is interrupted while it waits: the others stop, and the interrupt is passed on."""

    fired: list[None] = []

    def interrupt(inputs: list[Any], firing: int) -> list[Any]:
        fired.append(time.sleep(0.01))
        if len(fired) == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return []

    graph = ActorGraph((ActorSpec("a", "ctrl-c"),), (Queue("ctrl-c"),), 10_000)
    runner = Executor(graph, {"a": Chunk(interrupt)})
    with pytest.raises(KeyboardInterrupt):
        runner.run()
    assert not _threads_of(graph)


def _threads_of(graph: ActorGraph) -> list[threading.Thread]:
    names = {queue.name for queue in graph.queues}
    return [thread for thread in threading.enumerate() if thread.name in names]
