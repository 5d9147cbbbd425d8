"""docs/ops.md: for every op type its signatures, as the rules give them for a case that the tests run.

`python -m tools.ops_page` prints how many op types have a signature but all-B, and with `--write` writes the page.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.conformance.cases import CASES
from whaleish.rules import registry
from whaleish.rules.whole import WHOLE

Tables = dict[str, dict[tuple[str, tuple[str, ...]], list[str]]]
"""File of rules -> example with its signatures -> the op types that have them."""

PAGE = Path(__file__).parents[1] / "docs" / "ops.md"

HEAD = """\
# Ops

<!-- Written by `python -m tools.ops_page --write`; a test compares it with the rules. -->

{count} op types have a signature other than all-B, which each op has besides. The tables give the signatures
on one axis for an example: inputs by their shapes, `r` for a variable. In a row of several types, all have those
signatures for that example. `=>` in place of `->` says that a signature communicates inside and is written out in
primitive ops. What the letters mean is in [layouts](layouts.md); every signature is run part by part against the op
itself by `tests/conformance`, also with other shapes, dtypes and attributes.
"""

TAIL = """\
## Whole

These run whole, whatever the layouts of what they read, and `explain` does not list them as lacking a rule.

| why | op types |
| --- | --- |
"""


def example(cases: Iterable[Any]) -> tuple[str, tuple[str, ...]]:
    """The case with the most signatures (the first of them): its inputs, and its signatures but all-B."""
    offers = [(case, registry.signatures(case.view())[1:]) for case in cases]
    case, signatures = max(offers, key=lambda offer: len(offer[1]))
    texts = (str(s).replace("->", "=>") if s.expands else str(s) for s in signatures)
    return _inputs(case), tuple(text.strip() for text in texts)


def _inputs(case: Any) -> str:
    specs = case.view().inputs
    return " ".join(("r" if spec.dtype == "resource" else "") + str(list(spec.shape or ())) for spec in specs)


def families() -> Tables:
    by_type: dict[str, list[Any]] = {}
    for case in CASES:
        by_type.setdefault(case.type, []).append(case)
    found: Tables = {}
    for type in sorted(registry.rules.keys() & by_type.keys()):
        family = registry.rules[type].signatures.__module__.rpartition(".")[2]
        shown = example(by_type[type])
        if shown[1]:
            found.setdefault(family, {}).setdefault(shown, []).append(type)
    return dict(sorted(found.items()))


def count(tables: Tables) -> int:
    """Op types with a signature other than all-B."""
    return sum(len(types) for rows in tables.values() for types in rows.values())


def render(tables: Tables) -> str:
    """The whole page."""
    parts = [HEAD.format(count=count(tables))]
    for family, rows in tables.items():
        lines = [f"## {family.capitalize()}", "", "| op types | inputs | signatures |", "| --- | --- | --- |"]
        for (inputs, signatures), types in sorted(rows.items(), key=lambda row: row[1]):
            lines.append(f"| {', '.join(types)} | `{inputs}` | {'<br>'.join(f'`{s}`' for s in signatures)} |")
        parts.append("\n".join(lines) + "\n")
    parts.append(TAIL + "".join(f"| {why} | {', '.join(sorted(types))} |\n" for why, types in sorted(WHOLE.items())))
    return "\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.ops_page", description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.relative_to(PAGE.parents[1])}")
    write, tables = parser.parse_args().write, families()
    if write:
        PAGE.write_text(render(tables))
    print(f"{count(tables)} op types have a signature other than all-B")


if __name__ == "__main__":
    main()
