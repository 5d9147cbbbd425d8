"""`whaleish run`: horovodrun with the engine and flags that suit this machine."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence

from whaleish.launch import engine, machine, supervise


def run(
    ranks: int,
    command: Sequence[str],
    *,
    hosts: str | None = None,
    engine_name: str = "auto",
    extra: Sequence[str] = (),
    quiet: bool = False,
) -> int:
    """Start a program on several ranks and wait for it; returns the exit status to pass on."""
    launch = engine.choose(
        machine.find_machine(),
        ranks,
        command,
        python=sys.executable,
        hosts=hosts,
        engine=engine_name,
        extra=extra,
    )
    if not quiet:
        for note in launch.notes:
            print(f"whaleish run: {note}", file=sys.stderr)
        print(f"whaleish run: {shlex.join(launch.argv)}", file=sys.stderr, flush=True)
    status = supervise.supervise(launch.argv, environment())
    if status and not quiet:
        print(f"whaleish run: the ranks ended with status {status}", file=sys.stderr, flush=True)
    return status


def environment() -> dict[str, str]:
    """What the ranks inherit: this environment, with this Python's scripts (horovodrun, mpirun) found first.

    Horovod may make process sets later on, also where the program calls `hvd.init()` before `wh.init()`.
    """
    return {"HOROVOD_DYNAMIC_PROCESS_SETS": "1", **os.environ, "PATH": machine.search_path()}
