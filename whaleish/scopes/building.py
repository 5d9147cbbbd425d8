"""The scopes that are open round the building of models, on each thread."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TypeVar

from whaleish.scopes.contexts import ScopeContext

_Value = TypeVar("_Value")

_count = itertools.count()


@dataclass(eq=False)
class Entering:
    """One entering of a scope round the building of a model.

    Attributes:
      order: counts the enterings of this process.
      calls: how many calls were noted, and layers added, inside.
    """

    scope: ScopeContext
    order: int = field(default_factory=lambda: next(_count))
    calls: int = 0


Enterings = tuple[Entering, ...]
"""Outer to inner."""


_open: ContextVar[Enterings] = ContextVar("open", default=())


def open_enterings() -> Enterings:
    """Those that what is built now is inside."""
    return _open.get()


def inside(enterings: Enterings) -> contextlib.AbstractContextManager[None]:
    """What is built on this thread is inside these."""
    return setting(_open, enterings)


@contextlib.contextmanager
def setting(variable: ContextVar[_Value], value: _Value) -> Iterator[None]:
    """Gives a variable another value for a while."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)
