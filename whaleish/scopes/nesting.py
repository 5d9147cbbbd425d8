"""Which scopes make sense inside which others."""

from __future__ import annotations

from typing import Any

from whaleish.graph import Scope, ScopePath


class ScopeError(ValueError):
    """A scope that makes no sense where it stands."""

    # Autograph raises an error of the user's code again with more text, and keeps its type only if this holds.
    __init__ = Exception.__init__


def check(path: ScopePath) -> None:
    """Raises `ScopeError` where the innermost scope of the path makes no sense inside the others."""
    *outer, inner = path
    for scope in outer:
        _check_pair(scope, inner)


_REFUSED = {
    ("accumulate", "accumulate"): "give one of them the product of both, and take the other away",
    ("accumulate", "pipeline"): "a pipeline has micro-batches of its own; take accumulate away",
    ("pipeline", "accumulate"): "a pipeline has micro-batches of its own; take accumulate away",
    ("accumulate", "stage"): "stages run micro-batch by micro-batch in a wh.pipeline(); write that in its place",
    ("stage", "accumulate"): "stages run micro-batch by micro-batch in a wh.pipeline(); write that around them",
    ("pipeline", "pipeline"): "one pipeline holds all its stages; take the inner one away",
    ("stage", "pipeline"): "a pipeline is made of stages: write wh.stage() inside wh.pipeline()",
    ("stage", "stage"): "a stage is placed as a whole: end the outer one first",
    ("split", "stage"): "split shards ops over the devices of a stage: write wh.split() inside wh.stage()",
    ("split", "pipeline"): "split shards ops inside a stage: write wh.pipeline() outside wh.split()",
}


def _check_pair(outer: Scope, inner: Scope) -> None:
    reason = _REFUSED.get((outer.kind, inner.kind))
    if reason:
        raise ScopeError(f"{_text(inner)} inside {_text(outer)} makes no sense: {reason}")
    around, within = outer.option("devices"), inner.option("devices")
    if around is not None and within is not None:
        stray = sorted(set(within) - set(around))
        if stray:
            raise ScopeError(
                f"{_text(inner)} inside {_text(outer)}: devices {stray} are not among the outer scope's "
                f"{list(around)}; give devices from those, or leave `devices` out"
            )
    sharing = {"replica", "split"} >= {outer.kind, inner.kind}
    if sharing and within is not None and len(within) > 1 and set(within) == set(around or ()):
        raise ScopeError(
            f"{_text(inner)} inside {_text(outer)}: nested scopes are two mesh axes and cannot both span the same "
            f"{len(within)} devices; put them one after the other to share the devices, or leave `devices` out of "
            "the inner one and give each a degree"
        )
    if sharing and outer.kind == inner.kind and inner.option("degree") is None and within is None:
        raise ScopeError(
            f"{_text(inner)} inside {_text(outer)}: two axes of one kind cannot both take what the others leave; "
            "give the inner one a degree, or take it away"
        )


def written(kind: str, options: tuple[tuple[str, Any], ...]) -> str:
    """A scope as a user writes it."""
    return f"wh.{kind}({', '.join(f'{name}={value!r}' for name, value in options)})"


def _text(scope: Scope) -> str:
    return written(scope.kind, scope.options)
