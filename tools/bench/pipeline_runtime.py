"""What the runtime of pipelines costs: steps whose chunks sleep, against the timelines of their schedules.

A step with 4 stages of a small dense layer is compiled as any other, on 4 virtual devices of one process. Each of its
chunks then sleeps until a given time has passed since it began. So devices never wait for a processor, and all that is
above the timeline of the schedule is the runtime's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

DEVICES, MICRO_BATCHES, WIDTH = 4, 8, 64
SECONDS = {"F": 0.05, "B": 0.05, "W": 0.05}
"""Of a forward and of the halves of a backward, where a device has one stage; a backward in one piece takes both."""

STAGES = {"1f1b": DEVICES, "zb-h1": DEVICES, "interleaved(2)": 2 * DEVICES}
TIMES = 8


def measure() -> dict[str, Any]:
    """For each schedule the seconds of its steps, of its timeline, and of single firings."""
    import whaleish as wh
    from whaleish.schedule import Costs, make_schedule, timeline

    wh.init(virtual_devices=DEVICES)
    found: dict[str, Any] = {}
    steps = {schedule: _step(wh, schedule) for schedule in STAGES}
    bare = steps["1f1b"]
    firings = sum(map(bare.program.actors.graph.firings, bare.program.actors.graph.by_name))
    found["firing: the runtime"] = _timed(_empty(bare.program), firings, 10 * TIMES)
    found["firing: with TensorFlow's call"] = _timed(bare.run, firings, 10 * TIMES)
    for schedule, step in steps.items():
        seconds = {kind: value * DEVICES / STAGES[schedule] for kind, value in SECONDS.items()}
        _put_to_sleep(step.program, seconds)
        line = timeline(make_schedule(schedule, STAGES[schedule], MICRO_BATCHES), Costs(*seconds.values()))
        found[schedule] = _timed(step.run, 1, TIMES)
        found[f"{schedule}: timeline"] = {"seconds": [line.makespan] * TIMES, "cpu": [0.0] * TIMES}
    return found


class _Step:
    """A compiled step: its program, and how to run it once."""

    def __init__(self, program: Any, run: Callable[[], Any]) -> None:
        self.program, self.run = program, run


def _step(wh: Any, schedule: str) -> _Step:
    weights = [tf.Variable(tf.eye(WIDTH), name=f"{schedule}_{number}") for number in range(STAGES[schedule])]
    x = tf.ones((2 * MICRO_BATCHES, WIDTH))

    @wh.function
    def step(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            with wh.pipeline(MICRO_BATCHES, schedule):
                h = x
                for weight in weights:
                    with wh.stage():
                        h = tf.tanh(h @ weight)
            loss = tf.reduce_mean(h)
        for weight, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
            weight.assign_sub(0.1 * gradient)
        return loss

    step(x)
    return _Step(step.program_for(x), lambda: float(step(x)))


def _put_to_sleep(program: Any, seconds: dict[str, float]) -> None:
    """Has every chunk of a micro-batch take so long: F, B, W by the letters with which keys begin."""
    from whaleish.runtime import EACH, Chunk

    keys = {actor: key for actor, key in program.actors.chunk_of.items() if key.phase == EACH}
    letters = {(str(key)[0], key.stage) for key in keys.values()}
    chunks = program._executor.chunks
    for actor, key in keys.items():
        letter = str(key)[0]
        other = {"B": "W", "W": "B"}.get(letter, letter)  # where a backward is one piece, that is called by one of them
        whole = seconds[letter] + (seconds[other] if (other, key.stage) not in letters else 0.0)
        chunks[actor] = Chunk(_sleeping(chunks[actor].work, whole), chunks[actor].state)


def _sleeping(work: Callable[..., Sequence[Any]], seconds: float) -> Callable[..., Sequence[Any]]:
    def sleeping(inputs: list[Any], firing: int) -> Sequence[Any]:
        begun = time.perf_counter()
        outputs = work(inputs, firing)
        time.sleep(max(0.0, begun + seconds - time.perf_counter()))
        return outputs

    return sleeping


def _empty(program: Any) -> Callable[[], Any]:
    """Runs the actors of a program with chunks that do nothing."""
    from whaleish.runtime import Chunk, Executor, Feed

    graph = program.actors.graph
    outputs = [None] * 64  # more than any of them has
    executor = Executor(graph, dict.fromkeys(graph.by_name, Chunk(lambda inputs, firing: outputs)))
    reads = ((spec, read) for spec in graph.actors for read in spec.inputs if isinstance(read, Feed))
    feeds = {read.name: [None] * graph.firings(spec.name) for spec, read in reads}
    return lambda: executor.run(feeds)


def _timed(run: Callable[[], Any], firings: int, times: int) -> dict[str, list[float]]:
    run()
    found: dict[str, list[float]] = {"seconds": [], "cpu": []}
    for _ in range(times):
        cpu, begun = time.process_time(), time.perf_counter()
        run()
        found["seconds"].append((time.perf_counter() - begun) / firings)
        found["cpu"].append((time.process_time() - cpu) / firings)
    return found
