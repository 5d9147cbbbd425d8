"""docs/ops.md says what the rules say."""

import re

from tools.ops_page import PAGE, count, families, render
from whaleish.rules import OURS, registry


def test_page_is_what_the_rules_say() -> None:
    tables = families()
    assert PAGE.read_text() == render(tables), "docs/ops.md is old: run python -m tools.ops_page --write"


def test_page_has_every_op_type_that_can_be_divided() -> None:
    rows = [line.split("|")[1] for line in PAGE.read_text().partition("## Whole")[0].splitlines() if "| `" in line]
    named = [type for row in rows for type in re.findall(r"\w+", row)]
    assert sorted(named) == sorted(registry.rules.keys() - OURS)
    assert f"{count(families())} op types" in PAGE.read_text()
