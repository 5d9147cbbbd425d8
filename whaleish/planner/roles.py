"""Roles: what the user's scopes ask of each op on the mesh's axis."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from whaleish.graph import LogicalGraph, ScopePath
from whaleish.mesh import Axis, Mesh

REPLICA, SPLIT = "replica", "split"


class PlanError(ValueError):
    """The scopes ask for something that cannot be planned."""


@dataclass(frozen=True)
class Role:
    """What is asked of an op.

    Attributes:
      kind: REPLICA (batch dim split, weights whole) or SPLIT (weights sharded).
      dim: the weight dim to split, where the user pinned it.
    """

    kind: str = REPLICA
    dim: int | None = None


def find_roles(graph: LogicalGraph, size: int) -> tuple[Mesh, list[Role]]:
    """The mesh that the scopes imply on `size` devices, and the role of each scope path of the graph.

    Raises:
      PlanError: scopes nest in a way, or want a number of devices, that there is no mesh for.
    """
    roles = [_role(path, size) for path in graph.scopes]
    chosen = {s.option("devices") for path in graph.scopes for s in path if s.option("devices") is not None}
    if len(chosen) > 1:
        raise PlanError(
            f"the scopes name different devices: {' and '.join(str(list(d)) for d in sorted(chosen))}. "
            "Scopes beside each other share one group of devices; give all of them the same, or none"
        )
    devices: tuple[int, ...] = tuple(chosen.pop()) if chosen else tuple(range(size))
    if max(devices) >= size or len(set(devices)) != len(devices):
        raise PlanError(f"devices={list(devices)}: there are {size} devices, numbered 0 to {size - 1}, each named once")
    if list(devices) != sorted(devices):
        raise PlanError(f"devices={list(devices)}: name them in ascending order; part 0 is on the first")
    if len(devices) != size:
        raise PlanError(
            f"devices={list(devices)} leaves some of the {size} devices without work; "
            f"name all of them, or call wh.init() with {len(devices)} devices"
        )
    return Mesh((Axis("d", size),), devices), roles


def _role(path: ScopePath, size: int) -> Role:
    layers = [scope for scope in path if scope.kind in (REPLICA, SPLIT)]
    for scope in path:
        if scope.kind in ("stage", "pipeline", "auto"):
            raise PlanError(f"wh.{scope.kind}() is not compiled yet; the scopes compiled are replica and split")
    if len(layers) > 1:
        names = " inside ".join(f"{scope.kind}()" for scope in reversed(layers))
        raise PlanError(
            f"{names}: nested scopes need a mesh of {len(layers)} axes, and only one axis is compiled yet. "
            "Put the scopes beside each other: they then share all devices"
        )
    if not layers:
        return Role()
    (scope,) = layers
    degree: Any = scope.option("degree")
    if degree is not None and degree != size:
        raise PlanError(
            f"{scope.kind}(degree={degree}) on {size} devices: a scope that is not nested uses all of them; "
            f"leave the degree out, or call wh.init() with {degree} devices"
        )
    if scope.option("zero", 0):
        raise PlanError(
            f"replica(zero={scope.option('zero')}): sharded optimizer state is not compiled yet; use zero=0"
        )
    return Role(scope.kind, scope.option("dim"))
