"""The scopes that are open round the building of models, on each thread."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

from whaleish.scopes.contexts import ScopeContext

_count = itertools.count()
_thread = threading.local()  # .open: the enterings that are open


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


def open_enterings() -> Enterings:
    """Those that what is built now is inside."""
    return getattr(_thread, "open", ())


@contextlib.contextmanager
def inside(enterings: Enterings) -> Iterator[None]:
    """What is built on this thread is inside these."""
    before, _thread.open = open_enterings(), enterings
    try:
        yield
    finally:
        _thread.open = before
