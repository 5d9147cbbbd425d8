"""Saving variables that four ranks hold in parts: each rank its own, or all gathered by rank 0; and beside steps.

How much there is, in MB, is in the environment variable WHALEISH_BENCH_CHECKPOINT_MB. All ranks write to one disk, and
every contestant waits until its files are on it.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf

MEGABYTES = 256
VARIABLES = 16
STEPS = 20
"""So many of them are taken together."""

WARM, TIMES = 1, 3


def measure() -> dict[str, Any]:
    """Seconds, CPU seconds and bytes sent of each contestant, by turns."""
    import horovod.tensorflow as hvd

    import whaleish as wh
    from tools.bench.worker import sent_bytes
    from whaleish.meeting import share

    wh.init()
    rows = int(os.environ.get("WHALEISH_BENCH_CHECKPOINT_MB", MEGABYTES)) * 1_000_000 // (VARIABLES * 4 * 1000)
    variables = []
    for number in range(VARIABLES):
        variables.append(tf.Variable(tf.fill([rows, 1000], float(number)), name=f"v{number}"))
        wh.layout(variables[-1], "S(0)")

    @wh.function
    def step(x: tf.Tensor) -> tf.Tensor:
        with wh.replica():
            for variable in variables:
                variable.assign(variable * 0.999 + x)
            return tf.add_n([tf.reduce_sum(variable) for variable in variables])

    step(0.0)
    assert all(variable.in_parts for variable in variables)
    folder = share("bench.folder", tempfile.mkdtemp(prefix="whaleish-bench-").encode())[0].decode()
    objects = {"variables": variables}
    written: list[Any] = []

    def save(asynchronous: bool = False) -> None:
        written.append(wh.checkpoint.save(folder, objects, asynchronous=asynchronous))

    def steps() -> None:
        for _ in range(STEPS):
            float(step(0.001))

    def with_a_save(asynchronous: bool) -> None:
        save(asynchronous)
        steps()

    contestants: dict[str, Callable[[], None]] = {
        "gathered": lambda: _gathered(Path(folder) / "gathered", variables),
        "whaleish": save,
        "asynchronous": lambda: save(asynchronous=True),
        f"{STEPS} steps": steps,
        f"a save, {STEPS} steps": lambda: with_a_save(False),
        f"a save meanwhile, {STEPS} steps": lambda: with_a_save(True),
    }
    found: dict[str, Any] = {name: {"seconds": [], "cpu": [], "sent": []} for name in contestants}
    for number in range(-WARM, TIMES):
        for name, run in contestants.items():
            hvd.allreduce(tf.zeros(()), name="begin").numpy()
            sent, cpu, begun = sent_bytes(), time.process_time(), time.perf_counter()
            run()
            seconds, cpu = time.perf_counter() - begun, time.process_time() - cpu
            if written:
                written[-1].wait()
            hvd.allreduce(tf.zeros(()), name="end").numpy()
            if number >= 0:
                found[name]["seconds"].append(seconds)
                found[name]["cpu"].append(cpu)
                found[name]["sent"].append(sent_bytes() - sent)
    if wh.is_chief():
        shutil.rmtree(folder)
    return found


def _gathered(prefix: Path, variables: list[tf.Variable]) -> None:
    """What is there to do without sharded checkpoints: all variables come to rank 0, which writes."""
    import whaleish as wh
    from whaleish.checkpoint.folder import sync

    wholes = []
    for variable in variables:
        whole = wh.gather(variable)
        if wh.is_chief():
            wholes.append(whole)
    if wh.is_chief():
        tf.raw_ops.SaveV2(
            prefix=str(prefix),
            tensor_names=[variable.name for variable in variables],
            shape_and_slices=[""] * len(variables),
            tensors=wholes,
        )
        for file in prefix.parent.glob(f"{prefix.name}.*"):
            sync(file)
