"""Results as tables: for the terminal, and for docs/benchmarks.md."""

from __future__ import annotations

from collections.abc import Mapping

from tools.bench.contestant import Benchmark, Target
from tools.bench.measure import Figures, quotient

_HEADS = [
    "contestant",
    "median step, s",
    "fastest",
    "CPU, s",
    "last loss",
    "sent per host, MB",
    "by the plan",
    "state, MB",
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
            [target.text(), _number(measured / target.unit), "met" if target.met(measured) else "**missed**"]
        )
    lines += _grid(targets)
    if benchmark.curve:
        lines += ["", *_grid([["link", f"{_short(benchmark.targets[0])}"], *_along(benchmark, figures)])]
    lines += [f"\n{name}: {found.note}." for name, found in figures.items() if found.note]
    return "\n".join(lines) + "\n"


def _short(target: Target) -> str:
    return target.text().rpartition(",")[0]


def _along(benchmark: Benchmark, figures: Mapping[str, Figures]) -> list[list[str]]:
    """The first target's quotient at each rate."""
    target, rows = benchmark.targets[0], [[benchmark.rate, _number(quotient(benchmark.targets[0], figures))]]
    for rate in benchmark.curve:
        there = {name.removesuffix(f", {rate}"): found for name, found in figures.items() if name.endswith(f", {rate}")}
        rows.append([rate if rate != "none" else "unlimited", _number(quotient(target, there))])
    return rows


def _number(value: float) -> str:
    return f"{value:.3f}" if not 0 < value < 0.01 else f"{value:.6f}"


def _row(name: str, found: Figures) -> list[str]:
    megabytes = [found.median(figure) / 1e6 for figure in ("sent", "promised", "state", "peak")]
    return [
        name,
        _number(found.median("seconds")),
        _number(min(found.seconds)),
        f"{found.median('cpu'):.2f}",
        f"{found.losses[-1]:.5f}" if found.losses else "",
        *(f"{value:.2f}" if value else "" for value in megabytes),
    ]


def _grid(rows: list[list[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["| " + " | ".join(map(str.ljust, row, widths)) + " |" for row in rows]
    return [lines[0], "| " + " | ".join("-" * width for width in widths) + " |", *lines[1:]]
