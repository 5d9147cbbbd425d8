"""Results as tables: for the terminal, and for docs/benchmarks.md."""

from __future__ import annotations

from collections.abc import Mapping

from tools.bench.contestant import Benchmark
from tools.bench.measure import Figures, quotient

_HEADS = [
    "contestant",
    "median step, s",
    "fastest",
    "CPU, s",
    "last loss",
    "sent per host, MB",
    "by the plan",
    "peak, MB",
]


def table(benchmark: Benchmark, figures: Mapping[str, Figures]) -> str:
    """A Markdown table of the contestants and one of the targets."""
    rows = [_row(name, found) for name, found in figures.items()]
    kept = [column for column in range(len(_HEADS)) if any(row[column] for row in rows)]
    lines = _grid([[row[column] for column in kept] for row in [_HEADS, *rows]])
    lines += [""]
    targets = [["target", "measured", ""]]
    for target in benchmark.targets:
        measured = quotient(target, figures)
        targets.append(
            [target.text(), f"{measured / target.unit:.3f}", "met" if target.met(measured) else "**missed**"]
        )
    lines += _grid(targets)
    lines += [f"\n{name}: {found.note}." for name, found in figures.items() if found.note]
    return "\n".join(lines) + "\n"


def _row(name: str, found: Figures) -> list[str]:
    megabytes = [found.median(figure) / 1e6 for figure in ("sent", "promised", "peak")]
    return [
        name,
        f"{found.median('seconds'):.3f}",
        f"{min(found.seconds):.3f}",
        f"{found.median('cpu'):.2f}",
        f"{found.losses[-1]:.5f}" if found.losses else "",
        *(f"{value:.2f}" if value else "" for value in megabytes),
    ]


def _grid(rows: list[list[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["| " + " | ".join(map(str.ljust, row, widths)) + " |" for row in rows]
    return [lines[0], "| " + " | ".join("-" * width for width in widths) + " |", *lines[1:]]
