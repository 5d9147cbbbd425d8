"""What a process of a benchmark runs: builds the contestants, lets them take turns, and prints what it measured."""

from __future__ import annotations

import importlib
import json
import os
import pathlib
import sys
import time
from collections.abc import Sequence
from typing import Any

from tools.bench.contestant import Contestant
from tools.bench.measure import MARK

_SENT = pathlib.Path("/sys/class/net/eth0/statistics/tx_bytes")


def run(contestants: dict[str, Contestant], steps: int, warm: int, barrier: Any) -> dict[str, Any]:
    """Steps of the contestants by turns, in alternating order; seconds, CPU seconds and bytes of each step."""
    found: dict[str, Any] = {
        name: {
            "seconds": [],
            "cpu": [],
            "sent": [],
            "losses": [],
            "promised": c.promised,
            "state": c.state,
            "note": c.note,
        }
        for name, c in contestants.items()
    }
    for number in range(-warm, steps):
        for name in list(contestants)[:: 1 if number % 2 else -1]:
            barrier()
            sent, cpu, begun = sent_bytes(), time.process_time(), time.perf_counter()
            loss = contestants[name].step()
            seconds = time.perf_counter() - begun
            cpu = time.process_time() - cpu
            barrier()  # so that what this step has still to send is counted with it
            found[name]["losses"].append(loss)
            if number >= 0:
                found[name]["seconds"].append(seconds)
                found[name]["cpu"].append(cpu)
                found[name]["sent"].append(sent_bytes() - sent)
    return found


def peak_bytes() -> int:
    """The most memory that this process ever had resident."""
    status = pathlib.Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def sent_bytes() -> int:
    """What this host has sent so far; 0 outside a namespace of its own."""
    # Inside a network namespace this is the namespace's own interface.
    return int(_SENT.read_text()) if _SENT.exists() else 0


def _barrier() -> Any:
    if "HOROVOD_SIZE" not in os.environ:
        return lambda: None
    import horovod.tensorflow as hvd

    hvd.init(process_sets="dynamic")  # as whaleish does, which may need sets of some ranks
    import tensorflow as tf

    return lambda: hvd.allreduce(tf.constant(1.0), op=hvd.Sum, name="barrier").numpy()


def main(argv: Sequence[str]) -> None:
    """Arguments: benchmark, contestants with commas between, measured steps, steps before those."""
    module, names, steps, warm = argv
    benchmark = importlib.import_module(f"tools.bench.{module.replace('-', '_')}")
    if hasattr(benchmark, "measure"):
        found = benchmark.measure()
    else:
        barrier = _barrier()
        wanted = names.split(",")
        builders = benchmark.BUILDERS
        contestants = {name: build() for name, build in builders.items() if name in wanted or wanted == ["all"]}
        found = run(contestants, int(steps), int(warm), barrier)
    print(MARK + json.dumps({"contestants": found, "peak": peak_bytes()}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
