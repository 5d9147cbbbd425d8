"""`wh.trace`: when each chunk and transfer of steps began and ended, written as Chrome and Perfetto read it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from whaleish.program import Program
from whaleish.runtime import Event, Trace
from whaleish.staged import StagedProgram
from whaleish.world import World, world

STEPS = "steps"
"""The row of whole steps."""


@contextlib.contextmanager
def trace(path: str | Path) -> Iterator[Path]:
    """Writes when what happened in the steps that are called inside, for chrome://tracing or ui.perfetto.dev.

    A step with stages has an event for each firing of a chunk and each end of a transfer: on the row of its devices or
    its transfer, with micro-batch and bytes. An end of a transfer lasts from when it is ready until the other end is
    too and all is there. Every step is one event besides, on the row "steps": from the call until its results are
    there, without compiling. Below, under processes of their own, stands what the first call of each step with stages
    would have been at the rates of `wh.init(cluster=...)`, or nominal ones: see `explain`.

    Over several processes each rank writes a file of its own: "step.json" becomes "step.rank3.json". Ranks on one
    machine have one clock, and their files can be shown together: join the lists "traceEvents".

    Args:
      path: of the file, written when the block ends, also by an error.

    Yields:
      The path that this rank writes.

    Raises:
      FileNotFoundError: there is no such folder. RuntimeError: inside another `wh.trace`.
    """
    global _recording
    here, path = world(), Path(path)
    if here.distributed:
        path = path.with_name(f"{path.stem}.rank{here.rank}{path.suffix}")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"wh.trace({str(path)!r}): there is no folder {str(path.parent)!r}; make it first")
    if _recording is not None:
        raise RuntimeError(
            f"wh.trace({str(path)!r}) inside wh.trace({str(_recording.path)!r}): one is written at a time. End the "
            "outer one first, or take one of them away"
        )
    _recording = recording = _Recording(path, here)
    try:
        yield path
    finally:
        _recording = None
        recording.save()


def run(name: str, program: Program | StagedProgram, arguments: Sequence[Any], batch: int) -> Any:
    """Runs a step, and takes down what happens if that is wanted."""
    if _recording is None:
        return program(arguments, batch)
    return _recording.run(name, program, arguments, batch)


class _Recording:
    """The steps of a block, and where it is to be written.

    Attributes:
      staged: the programs with stages that ran, each with its step's name and when it first began.
    """

    def __init__(self, path: Path, here: World) -> None:
        self.path, self.world, self.trace = path, here, Trace()
        self.trace.processes[here.rank] = f"rank {here.rank}" if here.distributed else "this process"
        self.staged: dict[StagedProgram, tuple[str, float]] = {}

    def run(self, name: str, program: Program | StagedProgram, arguments: Sequence[Any], batch: int) -> Any:
        begin = time.perf_counter()
        try:
            if isinstance(program, Program):
                return program(arguments, batch)
            self.staged.setdefault(program, (name, begin))
            return program(arguments, batch, self.trace)
        finally:
            self.trace.add(Event(name, STEPS, self.world.rank, None, begin, time.perf_counter(), 0, "step"))

    def save(self) -> None:
        processes = self.world.processes
        for number, (program, (name, begin)) in enumerate(self.staged.items(), 1):
            for event in program.predicted().events:
                process = processes * number + event.process
                whose = f", rank {event.process}" if self.world.distributed else ""
                self.trace.processes[process] = f"{name}, predicted{whose}"
                self.trace.add(event._replace(process=process, begin=begin + event.begin, end=begin + event.end))
        self.trace.save(self.path, start=0.0)


_recording: _Recording | None = None
