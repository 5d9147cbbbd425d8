"""What `replica(zero=...)` asks for."""

from __future__ import annotations

from whaleish.graph import ScopePath

SLOTS, GRADIENTS, WEIGHTS = 1, 2, 3
"""What the parts of a replica share out, instead of each having all of it: from so much `zero` on."""

WHOLE_BELOW = 4096
"""Elements below which a variable stays whole: what it would save is not worth collectives of its own."""


def zero_of(path: ScopePath) -> int:
    """The most that a `replica` of a scope path asks for."""
    return max((int(scope.option("zero", 0)) for scope in path), default=0)
