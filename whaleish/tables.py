"""Text for people: bytes, and rows in columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator


def bytes_text(count: float) -> str:
    """`12.3 MB`: powers of 1000."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError("unreachable")


def table(rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    """Rows as lines, the first column to the left, the others to the right."""
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for first, *rest in rows:
        numbers = (text.rjust(width) for text, width in zip(rest, widths[1:], strict=True))
        yield "  ".join([first.ljust(widths[0]), *numbers])
