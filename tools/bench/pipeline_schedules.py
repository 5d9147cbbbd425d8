"""A transformer in stages on two ranks with a core each, by one schedule after another."""

from __future__ import annotations

import os
import pathlib

from tools.bench.contestant import Builders, Contestant
from tools.bench.encoder import Size
from tools.bench.pipeline import staged

DEVICES, MICRO_BATCHES = 2, 4
SIZE = Size(layers=4, width=512, heads=8, hidden=2048, length=64, batch=48)
STAGES = {"1f1b": DEVICES, "zb-h1": DEVICES, "interleaved(2)": 2 * DEVICES}


def whaleish(schedule: str, size: Size = SIZE) -> Contestant:
    """As many layers on each stage."""
    import whaleish as wh

    wh.init()
    _stay_on_a_core(wh.rank())
    return staged(size, STAGES[schedule], MICRO_BATCHES, schedule)


def _stay_on_a_core(rank: int) -> None:
    """Keeps all threads on one core: else a rank that waits leaves its own to the other, and nobody sees it wait."""
    for thread in pathlib.Path("/proc/self/task").iterdir():
        os.sched_setaffinity(int(thread.name), {rank % (os.cpu_count() or 1)})


BUILDERS: Builders = {
    "whaleish 1f1b": lambda: whaleish("1f1b"),
    "whaleish zb-h1": lambda: whaleish("zb-h1"),
    "whaleish interleaved(2)": lambda: whaleish("interleaved(2)"),
}
