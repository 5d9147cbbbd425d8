"""Puts measured tables into a document, between marks that name the benchmark."""

from __future__ import annotations


def replace_section(document: str, name: str, text: str) -> str:
    """The document with what is between the marks of a benchmark replaced; ValueError if it has no such marks."""
    begin, end = f"<!-- bench {name} -->\n", f"<!-- end {name} -->\n"
    before, found, rest = document.partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"the document has no place for {name}: the lines {begin.strip()!r} and {end.strip()!r}")
    return before + begin + text + end + after
