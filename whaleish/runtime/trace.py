"""Traces: when each firing began and ended, written as Chrome and Perfetto read it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any, NamedTuple


class Event(NamedTuple):
    """A firing.

    Attributes:
      name, queue, process: of the actor; its queue stands for its device.
      micro_batch: None for what runs once.
      begin, end: in seconds, on the clock of `time.perf_counter`.
      nbytes: of its outputs, or for the end of a transfer of what was moved.
      kind: "chunk", "send" or "receive"; "step" of a whole step.
    """

    name: str
    queue: str
    process: int
    micro_batch: int | None
    begin: float
    end: float
    nbytes: int
    kind: str = "chunk"


class Trace:
    """The events of one run or several; the threads of a run append to it.

    Attributes:
      processes: what processes are called, where they have names.
    """

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.processes: dict[int, str] = {}

    def add(self, event: Event) -> None:
        self.events.append(event)  # in CPython threads may append to a list at the same time

    def to_json(self, start: float | None = None) -> dict[str, Any]:
        """The trace in Chrome's format: a process for each process, a thread for each queue, times in microseconds.

        Args:
          start: from when they count; None: from the first event.
        """
        queues = list(dict.fromkeys((event.process, event.queue) for event in self.events))
        if start is None:
            start = min((event.begin for event in self.events), default=0.0)
        named: list[dict[str, Any]] = [
            {"ph": "M", "name": "process_name", "pid": process, "args": {"name": name}}
            for process, name in self.processes.items()
        ]
        named += [
            {"ph": "M", "name": "thread_name", "pid": process, "tid": number, "args": {"name": queue}}
            for number, (process, queue) in enumerate(queues)
        ]
        return {
            "displayTimeUnit": "ms",
            "traceEvents": named
            + [
                {
                    "ph": "X",
                    "name": event.name if event.micro_batch is None else f"{event.name} {event.micro_batch}",
                    "cat": event.kind,
                    "pid": event.process,
                    "tid": queues.index((event.process, event.queue)),
                    "ts": (event.begin - start) * 1e6,
                    "dur": (event.end - event.begin) * 1e6,
                    "args": {"device": event.queue, "micro_batch": event.micro_batch, "bytes": event.nbytes},
                }
                for event in sorted(self.events, key=lambda event: event.begin)
            ],
        }

    def save(self, path: str | Path, start: float | None = None) -> None:
        Path(path).write_text(json.dumps(self.to_json(start)))


def nbytes(values: Sequence[Any]) -> int:
    """The bytes of all arrays and tensors, also within lists."""
    return sum(nbytes(value) if isinstance(value, list | tuple) else _nbytes_of(value) for value in values)


def _nbytes_of(value: Any) -> int:
    if hasattr(value, "nbytes"):
        return int(value.nbytes)
    dtype = getattr(value, "dtype", None)  # TensorFlow's tensors say no more than their type and shape
    return int(getattr(dtype, "size", 0) * prod(value.shape)) if dtype is not None else 0
