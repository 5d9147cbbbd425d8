"""Shows how far a build is: a bar on a terminal, now and then a line elsewhere."""

from __future__ import annotations

import re
import sys
import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

LINE_EVERY_S = 20.0


class BuildProgress:
    """Reads the lines of a build by make, whose "[ 42%] Building" tells the share of objects done."""

    def __init__(self) -> None:
        console = Console(stderr=True)
        self._bar = (
            Progress(
                TextColumn("building Horovod"),
                BarColumn(),
                TextColumn("{task.percentage:>3.0f}%"),
                TimeElapsedColumn(),
                console=console,
            )
            if console.is_terminal
            else None
        )
        self._task = self._bar.add_task("", total=100) if self._bar else None
        self._start = self._said = time.monotonic()
        self.percent = 0
        self.objects = 0

    def read(self, line: str) -> None:
        """Take notice of one line of the build's output."""
        percent = parse_percent(line)
        if percent is None:
            return
        self.objects += "Building" in line
        # Several targets count on their own; the bar never goes back.
        self.percent = max(self.percent, percent)
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=self.percent)
        elif time.monotonic() - self._said > LINE_EVERY_S:
            self._said = time.monotonic()
            minutes, seconds = divmod(int(self._said - self._start), 60)
            text = f"building Horovod: {self.percent}%, {self.objects} objects, {minutes}:{seconds:02}"
            print(text, file=sys.stderr, flush=True)

    def __enter__(self) -> BuildProgress:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()


def parse_percent(line: str) -> int | None:
    """The share that make prints; None for other lines.

    >>> parse_percent("  [ 42%] Building CXX object horovod/common/common.cc.o")
    42
    """
    match = re.match(r"\s*\[\s*(\d+)%\]", line)
    return int(match.group(1)) if match else None
