"""Runs a benchmark in processes of its own and puts together what they measured."""

from __future__ import annotations

import json
import os
import pathlib
import statistics
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tools import netlab
from tools.bench.contestant import Benchmark, Target

MARK = "WHALEISH-BENCH "
ROOT = pathlib.Path(__file__).parents[2]
LIMIT_S = 1800


class BenchError(Exception):
    """A contestant did not get through."""


@dataclass
class Figures:
    """One contestant's, over all its measured steps.

    Attributes:
      seconds: of each step, those of its slowest rank. cpu: of all ranks together, in seconds.
      sent: bytes per step and host, the mean over hosts. promised: the same by the plan.
      losses: of each step, those of the warming ones first.
      state: bytes of weights, gradients and slots of the rank that has most; 0 where not asked.
      peak: the most memory that a rank had, or what was measured says that it took, in bytes; 0 where not measured.
    """

    seconds: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    sent: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    promised: float | None = None
    state: float = 0.0
    peak: float = 0.0
    note: str = ""

    def median(self, figure: str) -> float:
        """The median of a figure's values, or its one value; 0 for none."""
        value = getattr(self, figure)
        if isinstance(value, list):
            return statistics.median(value) if value else 0.0
        return float(value or 0.0)


def quotient(target: Target, figures: Mapping[str, Figures]) -> float:
    """The quotient of a target, as measured, or its one figure; NaN where a figure is missing.

    Steps that were taken by turns are divided one by one, and the median of that is taken: other load on the machine
    then weighs on both.
    """
    if target.over:
        first, second = (quotient(part, figures) for part in target.parts())
        return first / second if second else float("nan")
    who, figure = target.above
    if target.below is None:
        return figures[who].median(figure) if who in figures else float("nan")
    other, other_figure = target.below
    if who not in figures or other not in figures:
        return float("nan")
    above, below = getattr(figures[who], figure), getattr(figures[other], other_figure)
    if isinstance(above, list) and isinstance(below, list) and len(above) == len(below) and above:
        return statistics.median(a / b if b else float("nan") for a, b in zip(above, below, strict=True))
    under = figures[other].median(other_figure)
    return figures[who].median(figure) / under if under else float("nan")


def measure(benchmark: Benchmark, steps: int) -> dict[str, Figures]:
    """Contestant -> its figures."""
    figures: dict[str, Figures] = {}
    for _ in range(benchmark.processes):
        _merge(figures, _processes(benchmark, "all", steps, benchmark.warm))
    if benchmark.memory:
        for name, found in figures.items():
            found.peak = max(rank["peak"] for rank in _processes(benchmark, name, 2, 1))
    for rate in benchmark.curve:
        there: dict[str, Figures] = {}
        _merge(there, _processes(replace(benchmark, rate=rate), "all", steps, benchmark.warm))
        figures |= {f"{name}, {rate}": found for name, found in there.items()}
    return figures


def _merge(figures: dict[str, Figures], ranks: list[dict[str, Any]]) -> None:
    for name in ranks[0]["contestants"]:
        found = figures.setdefault(name, Figures())
        own = [rank["contestants"][name] for rank in ranks]
        found.seconds += map(max, zip(*(rank["seconds"] for rank in own), strict=True))
        found.cpu += map(sum, zip(*(rank["cpu"] for rank in own), strict=True))
        found.sent += map(statistics.mean, zip(*(rank.get("sent", ()) for rank in own), strict=True))
        found.losses += own[0].get("losses", [])
        found.promised, found.note = own[0].get("promised"), own[0].get("note", "")
        found.state = max(rank.get("state", 0.0) for rank in own)
        found.peak = max([found.peak, *(rank.get("peak", 0.0) for rank in own)])


def _processes(benchmark: Benchmark, names: str, steps: int, warm: int) -> list[dict[str, Any]]:
    """What each rank measured."""
    command = [sys.executable, "-m", "tools.bench.worker", benchmark.name, names, str(steps), str(warm)]
    env = environment(benchmark)
    if benchmark.hosts:
        with netlab.Network(benchmark.hosts, benchmark.rate) as net:
            result = netlab.run_ranks(net, command, env=env, timeout=LIMIT_S)
        outputs, status = result.outputs, result.status
    else:
        ended = subprocess.run(command, env=env, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        outputs, status = (ended.stdout + ended.stderr,), ended.returncode
    lines = [[line for line in text.splitlines() if line.startswith(MARK)] for text in outputs]
    if status or not all(lines):
        raise BenchError(f"{benchmark.name}, {names}: status {status}\n" + "\n".join(t[-3000:] for t in outputs))
    return [json.loads(found[0].removeprefix(MARK)) for found in lines]


def environment(benchmark: Benchmark) -> dict[str, str]:
    """The same threads for all contestants; nothing of a launcher's that this process may run under.

    What PYTHONPATH names stays importable, after this project: peers that are not installed beside it.
    """
    intra, inter = benchmark.threads
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HOROVOD_", "OMPI_", "PMIX_"))}
    return kept | {
        "CUDA_VISIBLE_DEVICES": "-1",
        "OMP_NUM_THREADS": str(intra),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")])),
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "TF_NUM_INTEROP_THREADS": str(inter),
        "TF_NUM_INTRAOP_THREADS": str(intra),
    }
