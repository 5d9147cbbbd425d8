"""The catalogue: everything that may be drawn as the next statement of a program."""

from __future__ import annotations

from collections.abc import Callable

from tests.programs.draft import Draft

Operation = Callable[[Draft], object]

CATALOGUE: list[Operation] = []
"""Each appends a statement to a draft, or a few; raises Unsuited where nothing suits it."""


def operation(add: Operation) -> Operation:
    CATALOGUE.append(add)
    return add


def listed(text: str) -> list[str]:
    """The words of a text."""
    return text.split()
