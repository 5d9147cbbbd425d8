"""Scopes: what the user says of a part of a model with a `with`."""

from whaleish.scopes.contexts import (
    ScopeContext,
    accumulate,
    auto,
    local_statistics,
    offload,
    pipeline,
    recompute,
    replica,
    split,
    stage,
)
from whaleish.scopes.half import half
from whaleish.scopes.nesting import ScopeError, check
from whaleish.scopes.text import ATTRIBUTE, encode, parse

__all__ = [
    "ATTRIBUTE",
    "ScopeContext",
    "ScopeError",
    "accumulate",
    "auto",
    "check",
    "encode",
    "half",
    "local_statistics",
    "offload",
    "parse",
    "pipeline",
    "recompute",
    "replica",
    "split",
    "stage",
]
