"""`python -m tools.bench [name ...] [--steps N] [--write]`: contestants side by side; prints their figures."""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import shlex
import sys
import time
from collections.abc import Sequence

from tools.bench.measure import ROOT, BenchError, measure
from tools.bench.suite import SUITE
from tools.bench.table import table
from tools.bench.writing import replace_section
from tools.netlab import NetlabError, check_tools

DOCUMENT = ROOT / "docs" / "benchmarks.md"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=f"which benchmarks: {', '.join(SUITE)} (default: all)")
    parser.add_argument("--steps", type=int, help="measured steps of each contestant")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/benchmarks.md")
    options = parser.parse_args(argv)
    unknown = [name for name in options.names if name not in SUITE]
    if unknown:
        parser.error(f"no benchmark is called {unknown[0]!r}; there are {', '.join(SUITE)}")
    status = 0
    for benchmark in [SUITE[name] for name in options.names or SUITE]:
        print(f"## {benchmark.name}\n\n{benchmark.title}\n", flush=True)
        begun = time.monotonic()
        try:
            if benchmark.hosts:
                check_tools()
            load = os.getloadavg()[0]
            text = table(benchmark, measure(benchmark, options.steps or benchmark.steps))
        except (BenchError, NetlabError) as error:
            print(error, file=sys.stderr)
            status = 1
            continue
        command = shlex.join(["python", "-m", "tools.bench", benchmark.name])
        command += f" --steps {options.steps}" if options.steps else ""
        where = f"{datetime.date.today()}, {machine()}, load {load:.1f} before, {time.monotonic() - begun:.0f} s"
        text += f"\n`{command}`; {where}\n"
        print(text, flush=True)
        if options.write:
            DOCUMENT.write_text(replace_section(DOCUMENT.read_text(), benchmark.name, text))
    return status


def machine() -> str:
    """The processor and how many of it."""
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        models = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    return f"{len(os.sched_getaffinity(0))} cores of {models[0] if models else platform.machine()}"


if __name__ == "__main__":
    sys.exit(main())
