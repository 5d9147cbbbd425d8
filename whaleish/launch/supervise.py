"""Runs a launcher so that, however it ends, none of the processes that it started is left."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from types import FrameType

import psutil

GRACE_S = 3.0  # between asking processes to end and ending them
_PR_SET_CHILD_SUBREAPER = 36


def supervise(argv: Sequence[str], env: Mapping[str, str]) -> int:
    """Run a command until it ends, is interrupted (Ctrl-C) or this process is told to end (SIGTERM, SIGHUP).

    horovodrun over MPI turns itself into a shell that waits for mpirun, and a shell that is ended leaves mpirun and
    its ranks behind. So this process adopts orphans below it, and ends whatever is left when the command has ended.

    Returns:
        The command's exit status, as a shell gives it: 128 + the signal's number where a signal ended it.
    """
    adopt_orphans()
    caught: list[int] = []

    def stop(number: int, _frame: FrameType | None) -> None:
        caught.append(number)
        end_descendants()

    handled = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, stop) for number in handled}
    try:
        child = subprocess.Popen(list(argv), env=dict(env))
        status = child.wait()
    finally:
        # A second Ctrl-C must not cut the clearing up short.
        for number in handled:
            signal.signal(number, signal.SIG_IGN)
        end_descendants()
        for number, handler in before.items():
            signal.signal(number, handler)
    if caught:
        return 128 + caught[0]
    return 128 - status if status < 0 else status


def adopt_orphans() -> None:
    """Make this process the parent of descendants whose own parent dies (Linux; elsewhere nothing happens)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_descendants(grace_s: float = GRACE_S) -> None:
    """Ask every process below this one to end, and kill those that are still there after `grace_s` seconds."""
    end_processes(psutil.Process(os.getpid()).children(recursive=True), grace_s)
    # What was started meanwhile, or reparented while the list was made.
    deadline = time.monotonic() + grace_s
    while time.monotonic() < deadline:
        left = [p for p in psutil.Process(os.getpid()).children(recursive=True) if lives(p)]
        if not left:
            return
        end_processes(left, 0)


def end_processes(processes: Sequence[psutil.Process], grace_s: float = GRACE_S) -> None:
    """Ask processes to end, then kill those that did not."""
    for process in processes:
        _signal(process, signal.SIGTERM if grace_s > 0 else signal.SIGKILL)
        _signal(process, signal.SIGCONT)  # one that is stopped would not notice
    for process in _wait(processes, grace_s):
        _signal(process, signal.SIGKILL)
    _wait(processes, GRACE_S)


def _wait(processes: Sequence[psutil.Process], limit_s: float) -> list[psutil.Process]:
    """Those that still run after `limit_s` seconds. A zombie has ended: its parent may be slow to notice, or never."""
    deadline = time.monotonic() + limit_s
    while (alive := [process for process in processes if lives(process)]) and time.monotonic() < deadline:
        time.sleep(0.02)
    return alive


def _signal(process: psutil.Process, number: int) -> None:
    with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
        process.send_signal(number)


def lives(process: psutil.Process) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
