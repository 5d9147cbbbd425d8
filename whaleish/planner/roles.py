"""Roles: the mesh that the user's scopes imply, and what they ask of each op on each of its axes."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from whaleish.graph import LogicalGraph, Scope, ScopePath
from whaleish.mesh import Axis, Mesh

REPLICA, SPLIT, ACCUMULATE, PIPELINE = "replica", "split", "accumulate", "pipeline"


class PlanError(ValueError):
    """The scopes ask for something that cannot be planned."""


@dataclass(frozen=True)
class Role:
    """What is asked of an op on one axis.

    Attributes:
      kind: REPLICA (batch dim split, weights whole) or SPLIT (weights sharded).
      dim: the weight dim to split, where the user pinned it.
      zero: of REPLICA, what the parts share out instead of each having all of it (`planner/zero.py`).
    """

    kind: str = REPLICA
    dim: int | None = None
    zero: int = 0


def find_roles(graph: LogicalGraph, size: int) -> tuple[Mesh, list[list[Role]]]:
    """The mesh that the scopes imply on `size` devices, and for each axis the role of each scope path of the graph.

    Scopes that nest are axes, the outermost first. A scope with none inside spans all axes from its own on, unless its
    degree is that of its own axis: beside a `replica` that holds a `split`, another `split` shards over all devices.
    An `accumulate` or `pipeline` is an axis of time, beside one of devices. Elsewhere ops are `replica`. `stage` is no
    axis: `size` is the number of devices of one stage.

    Raises:
      PlanError: scopes nest in a way, or want a number of devices, that there is no mesh for.
    """
    paths = _with_devices([_layers(path) for path in graph.scopes], size)
    depth = max(1, *map(len, paths))
    devices = _devices(paths, size)
    times = [_micro_batches(paths, axis) for axis in range(depth)]
    sizes = _sizes(paths, times, len(devices))
    shares = [None if times[axis] else _shares(paths, axis, sizes) for axis in range(depth)]
    axes = zip(_names(paths, times), (t or s for t, s in zip(times, sizes, strict=True)), shares, times, strict=True)
    mesh = Mesh(tuple(Axis(name, count, share, bool(time)) for name, count, share, time in axes), devices)
    return mesh, [[Role() if times[axis] else _role(path, axis, sizes) for path in paths] for axis in range(depth)]


def is_axis(scope: Scope) -> bool:
    """Whether a scope is an axis of devices."""
    return scope.kind in (REPLICA, SPLIT)


def _layers(path: ScopePath) -> ScopePath:
    """The scopes of a path that are axes."""
    for scope in path:
        if scope.kind == "auto":
            raise PlanError(
                "wh.auto() is not compiled yet; the scopes compiled are replica, split, stage, pipeline and accumulate"
            )
    return tuple(scope for scope in path if is_axis(scope) or _is_time(scope))


def _is_time(scope: Scope) -> bool:
    return scope.kind in (ACCUMULATE, PIPELINE)


def _with_devices(paths: list[ScopePath], size: int) -> list[ScopePath]:
    """Beside an axis of time there is one of devices: what no scope deals out to them is `replica`.

    Devices come before an `accumulate`, and after a `pipeline`: a micro-batch is of the same rows on all its stages,
    though one may have more devices than another.
    """
    timed = [path for path in paths if any(map(_is_time, path))]
    if any(scope.kind == PIPELINE for path in timed for scope in path):
        outer = {prod(int(scope.option("degree") or 1) for scope in _outside(path)) for path in timed}
        if any(is_axis(path[-1]) and len(path) > len(_outside(path)) + 1 for path in timed) or outer == {size} != {1}:
            return paths
        return [(*path, Scope(REPLICA, -1)) if path in timed else path for path in paths]
    first = Scope(REPLICA, -1, (("degree", 1),) if any(len(path) > 1 and _is_time(path[0]) for path in timed) else ())
    return [(first, *path) if path in timed and _is_time(path[0]) else path for path in paths]


def _outside(path: ScopePath) -> ScopePath:
    """The scopes round the axis of time of a path."""
    return path[: next(place for place, scope in enumerate(path) if _is_time(scope))]


def _micro_batches(paths: list[ScopePath], axis: int) -> int:
    """The size of an axis of time; 0 for an axis of devices."""
    scopes = {path[axis] for path in paths if len(path) > axis}
    counts = {scope.option("micro_batches", 0) for scope in scopes}
    if len(counts) > 1:
        raise PlanError(
            f"{' and '.join(sorted(map(_text, scopes)))} are one axis of the mesh, for they nest in as many scopes. "
            "Give all the same micro_batches, and put accumulate inside the same scopes everywhere"
        )
    return int(counts.pop()) if counts else 0


def _role(path: ScopePath, axis: int, sizes: list[int]) -> Role:
    if not path or (axis >= len(path) and not _spans(path, sizes)):
        return Role()
    scope = path[min(axis, len(path) - 1)]
    return Role(scope.kind, scope.option("dim"), scope.option("zero", 0))


def _spans(path: ScopePath, sizes: list[int]) -> bool:
    """Whether the innermost scope of a path spans all axes from its own on; its degree may say that it has one."""
    return path[-1].option("degree") in (None, prod(sizes[len(path) - 1 :]))


def _names(paths: list[ScopePath], times: list[int]) -> list[str]:
    """`d` for the only axis; of several, each is called by the scopes that make it."""
    if len(times) == 1:
        return ["micro" if times[0] else "d"]
    kinds = [{path[axis].kind for path in paths if len(path) > axis} for axis in range(len(times))]
    names = [
        "micro" if time else kind.pop() if len(kind) == 1 else "d" for time, kind in zip(times, kinds, strict=True)
    ]
    return [name if names.count(name) == 1 else f"{name}{axis}" for axis, name in enumerate(names)]


def _sizes(paths: list[ScopePath], times: list[int], size: int) -> list[int]:
    """The size of each axis, from the degrees that are given; 1 for axes of time, which take no devices."""
    depth = len(times)
    holding = {scope for path in paths for scope in path[:-1]}
    given: dict[int, Scope] = {}
    spanning: list[tuple[int, Scope]] = []
    for path in paths:
        for axis, scope in enumerate(path):
            if scope.option("degree") is None:
                continue
            if scope not in holding and axis < depth - 1:
                spanning.append((axis, scope))
                continue
            other = given.setdefault(axis, scope)
            if other.option("degree") != scope.option("degree"):
                raise PlanError(
                    f"{_text(other)} and {_text(scope)} are one axis of the mesh and want different numbers of parts; "
                    "give both the same degree"
                )
    known = {axis: int(scope.option("degree")) for axis, scope in given.items()}
    known |= {axis: 1 for axis, time in enumerate(times) if time}
    open_axes = [axis for axis in range(depth) if axis not in known]
    left, rest = divmod(size, prod(known.values()))
    said = " and ".join(_text(scope) for _, scope in sorted(given.items()))
    if rest or (left > 1 and not open_axes):
        count = prod(known.values())
        raise PlanError(
            f"{said} on {size} device{'' if size == 1 else 's'}: the scopes of a step share all devices, so their "
            f"degrees must multiply to {size}. Change one, leave the degree out to have it inferred, or call wh.init() "
            f"with {count} devices"
        )
    if len(open_axes) > 1 and left > 1:
        nest = max(paths, key=len)
        raise PlanError(
            f"{' inside '.join(_text(scope) for scope in reversed(nest))}: nested scopes are axes of a mesh, and "
            f"{size} devices can be dealt out to them in several ways. Give all but one a degree: the product of the "
            f"degrees is {size}"
        )
    sizes = [known.get(axis, left if axis in open_axes[:1] else 1) for axis in range(depth)]
    for axis, scope in spanning:
        if scope.option("degree") not in (sizes[axis], prod(sizes[axis:])):
            raise PlanError(
                f"{_text(scope)} is beside scopes that deal the {size} devices out as {' x '.join(map(str, sizes))}; "
                f"its degree can be {sizes[axis]} or {prod(sizes[axis:])}. Give it one of these, or leave it out"
            )
    return sizes


def _shares(paths: list[ScopePath], axis: int, sizes: list[int]) -> tuple[int, ...] | None:
    """How much each part of an axis gets, where a scope says so."""
    found = {path[axis] for path in paths if len(path) > axis and path[axis].option("shares") is not None}
    chosen = {scope.option("shares") for scope in found}
    if not chosen:
        return None
    shares: tuple[int, ...] = chosen.pop()
    if chosen or len(shares) != sizes[axis]:
        raise PlanError(
            f"{' and '.join(sorted(map(_text, found)))}: scopes that share an axis of {sizes[axis]} parts share its "
            f"parts' sizes too. Give all the same {sizes[axis]} shares, or give them to one scope only"
        )
    return None if len(set(shares)) == 1 else shares


def _devices(paths: list[ScopePath], size: int) -> tuple[int, ...]:
    inner = [scope for path in paths for scope in path[1:] if scope.option("devices") is not None]
    if inner:
        raise PlanError(
            f"{_text(inner[0])} is inside another scope: the outermost scope names the devices, and those inside are "
            "dealt out of them in order. Leave its devices out and give it a degree"
        )
    chosen = {path[0].option("devices") for path in paths if path and path[0].option("devices") is not None}
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
    return devices


def _text(scope: Scope) -> str:
    options = ", ".join(f"{name}={value!r}" for name, value in scope.options)
    return f"{scope.kind}({options})"
