"""Paths of scopes as text, which an op carries as a string attribute:

    replica#0(degree=2)/stage#3(devices=(0, 1))

The number counts the scopes entered in one graph, so it is the same on all processes that trace the same code.
"""

from __future__ import annotations

import ast
import re
from typing import Any

from whaleish.graph import Scope, ScopePath

ATTRIBUTE = "_whaleish_scope"
"""Name of the op attribute that holds the path."""


def encode(path: ScopePath) -> str:
    """The path as text; `parse` is its inverse."""
    return "/".join(map(_encode_one, path))


def parse(text: str) -> ScopePath:
    """The inverse of `encode`."""
    path, place = [], 0
    while place < len(text):
        match = _SCOPE.match(text, place)
        if match is None:
            raise ValueError(f"{text!r} is not a path of scopes (at {text[place:]!r})")
        path.append(Scope(match[1], int(match[2]), _parse_options(match[3])))
        place = match.end()
    return tuple(path)


_STRING = r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\""
_SCOPE = re.compile(rf"(\w+)#(\d+)(?:\(((?:[^()'\"]|{_STRING}|\([^()]*\))*)\))?(?:/(?=\w)|$)")


def _encode_one(scope: Scope) -> str:
    options = ", ".join(f"{name}={value!r}" for name, value in scope.options)
    return f"{scope.kind}#{scope.number}" + (f"({options})" if options else "")


def _parse_options(text: str | None) -> tuple[tuple[str, Any], ...]:
    if not text:
        return ()
    call = ast.parse(f"f({text})", mode="eval").body
    assert isinstance(call, ast.Call)
    return tuple((str(word.arg), ast.literal_eval(word.value)) for word in call.keywords)
