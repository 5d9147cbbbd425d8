"""The user's scopes as context managers. A scope changes no op: it annotates those that are made inside."""

from __future__ import annotations

import operator
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from whaleish.offloading import KINDS, OFFLOAD
from whaleish.schedule import check_given
from whaleish.scopes.nesting import ScopeError, written

_open = threading.local()  # .entered: the `Entered` of each scope now open on this thread, innermost last


@dataclass(frozen=True)
class ScopeContext:
    """What `replica()`, `split()` and the others return: `with` it, as often and as deeply as you like.

    Attributes:
      kind: as in `graph.Scope`.
      options: the arguments that are not their defaults, as sorted (name, value) pairs.
    """

    kind: str
    options: tuple[tuple[str, Any], ...] = ()

    def __enter__(self) -> None:
        # TensorFlow is imported here and not above: scopes as data serve tools that do without it.
        from whaleish.scopes.entering import enter

        entered = enter(self)
        vars(_open).setdefault("entered", []).append(entered)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        entered = _open.entered.pop()
        entered.undo.close()
        complaint = entered.complaint() if kind is None else ""
        if complaint:
            raise ScopeError(f"{self} {complaint}")

    def __str__(self) -> str:
        return written(self.kind, self.options)


def replica(
    degree: int | None = None,
    devices: Sequence[int] | None = None,
    zero: int = 0,
    shares: Sequence[int] | None = None,
) -> ScopeContext:
    """Ops inside run with the batch dim split over an axis of `degree` parts.

    Scopes that nest are axes of a mesh: `replica(2)` round `split()` is data parallel over two groups of devices, each
    of which shards the weights. The scopes of a step share all devices (`devices` must name all of them), so the
    degrees of a nest multiply to their number.

    Args:
      degree: number of parts; None: what the other axes leave.
      devices: indices into the devices of `wh.init()`, as a list or range; None: all.
      zero: what replicas share out in place of each having all of it: nothing (0), optimizer slots (1), gradients too
        (2), weights too (3), of the variables that ops inside use and of what their updates keep (Rajbhandari et al.,
        2020, "ZeRO"). Variables of fewer than 4,096 elements stay whole.
      shares: for devices that are not equally fast, how much each part does, `[3, 1]`; in place of `degree`.
    """
    if not _is_int(zero) or zero not in range(4):
        raise ScopeError(f"wh.replica(zero={zero!r}): zero is 0, 1, 2 or 3")
    return _scope("replica", _placing(degree, devices, "replica", shares), zero=int(zero) or None)


def split(
    degree: int | None = None,
    dim: int | None = None,
    devices: Sequence[int] | None = None,
    shares: Sequence[int] | None = None,
) -> ScopeContext:
    """Products inside have their weights sharded over an axis; what lies between them follows by cost.

    `degree` and `devices` are as for `replica`, inside which a `split` is an axis of its own.

    Args:
      degree: number of parts; None: what the other axes leave.
      dim: the dim of the weights to split, negative from the end; None: the cheapest by the rules.
      devices: indices into the devices of `wh.init()`, as a list or range; None: all.
      shares: for devices that are not equally fast, how much each part holds, `[3, 1]`; in place of `degree`.
    """
    if dim is not None and not _is_int(dim):
        raise ScopeError(f"wh.split(dim={dim!r}): dim is an integer, negative from the end, or None")
    return _scope("split", _placing(degree, devices, "split", shares), dim=None if dim is None else int(dim))


def stage(devices: Sequence[int] | None = None) -> ScopeContext:
    """Ops inside run on one group of devices, and their variables live there.

    Each entering is a stage of its own; what stages compute depends on their order alone. What no stage holds follows
    the data: gradients and updates go where their weights are, a loss where its predictions are. Inside a `pipeline`
    stages work on different micro-batches at the same time; without one they take turns.

    Args:
      devices: indices into the devices of `wh.init()`; None, for all stages of a step: they share them evenly.
    """
    return _scope("stage", _placing(None, devices, "stage"))


def accumulate(micro_batches: int) -> ScopeContext:
    """Ops inside see the batch in so many parts, one after another; gradients are added up over them.

    The parts are an axis of time: the batch dim is split over it as over devices, and results are those of the whole
    batch. What needs the whole batch in the middle of a step (the statistics of a batch norm, say) is an error that
    names it.

    Args:
      micro_batches: how many. A batch that they do not divide is cut into parts that differ by one row at most.
    """
    if not _is_int(micro_batches) or micro_batches < 1:
        raise ScopeError(f"wh.accumulate({micro_batches!r}): give an integer of at least 1")
    return _scope("accumulate", micro_batches=int(micro_batches))


def pipeline(micro_batches: int, schedule: str = "1f1b", recompute: bool = False) -> ScopeContext:
    """The stages inside run micro-batch by micro-batch, one stage on this while the next is on the one before.

    Results are those of the whole batch, as for `accumulate`, and what that refuses this does too.

    Args:
      micro_batches: how many. A batch that they do not divide is cut into parts that differ by one row at most.
      schedule: "gpipe", "1f1b", "interleaved(v)" (v stages on each group of devices), "zb-h1", or a list of one's own,
        a line for each group of devices: "F0 F1 B0 B1\\nF0 B0 F1 B1".
      recompute: whether the backward of a stage runs its forward again, in place of keeping what it made.
    """
    if not _is_int(micro_batches) or micro_batches < 1:
        raise ScopeError(f"wh.pipeline(micro_batches={micro_batches!r}): give an integer of at least 1")
    try:
        check_given(schedule)
    except ValueError as error:
        raise ScopeError(f"wh.pipeline(schedule={schedule!r}): {error}") from error
    if not isinstance(recompute, bool):
        raise ScopeError(f"wh.pipeline(recompute={recompute!r}): give True or False")
    return _scope(
        "pipeline",
        micro_batches=int(micro_batches),
        schedule=None if schedule == "1f1b" else schedule,
        recompute=recompute or None,
    )


def local_statistics() -> ScopeContext:
    """Means over the split batch inside take each part's own batch: faster, and another result.

    Batch norm then normalises by the statistics of the part's own batch, as Horovod's users have it, and what it
    assigns to variables is the mean over the parts. Means that leave a single number, such as a loss, stay those of the
    whole batch.
    """
    return _scope("local_statistics")


def recompute() -> ScopeContext:
    """What ops inside make is made again for the backward, in place of being kept until then.

    All that is made in one entering is a segment. What it is given is kept, and what it gives to others; the rest is
    made again when the gradients have arrived at its end. Results are the same, random numbers too. Of layers that
    repeat each is best put into a scope of its own. Inside a segment there may be others.
    """
    return _scope("recompute")


def offload(*kinds: str) -> ScopeContext:
    """What ops inside make for the backward, and what optimizers keep of their weights, is in the host's memory.

    Args:
      kinds: "activations": what ops inside make and the backward reads is copied to the host, and back a little before
        it is read; "slots": what the updates of the variables used inside keep lies in the host's memory, and is copied
        to the device when the gradient is there. Without any, both. Tensors of fewer than 4,096 elements stay.
    """
    if not all(isinstance(kind, str) and kind in KINDS for kind in kinds):
        allowed = " or ".join(f'"{kind}"' for kind in KINDS)
        raise ScopeError(f"wh.offload({', '.join(map(repr, kinds))}): give {allowed}, or nothing for both")
    given = tuple(sorted(set(kinds or KINDS)))
    return _scope(OFFLOAD, kinds=given if len(given) < len(KINDS) else None)


def auto() -> ScopeContext:
    """Ops inside are left to the planner. Not compiled yet."""
    return _scope("auto")


def _scope(kind: str, placing: dict[str, Any] | None = None, **options: Any) -> ScopeContext:
    given = {**(placing or {}), **options}
    return ScopeContext(kind, tuple(sorted((name, value) for name, value in given.items() if value is not None)))


def _is_int(value: Any) -> bool:
    """Also of NumPy and of TensorFlow; an array of several and a tensor of a traced function have no `int`."""
    try:
        return not isinstance(value, bool) and operator.index(value) == value
    except (TypeError, AttributeError, NotImplementedError):
        return False


def _listed(values: Any) -> list[Any]:
    """What a list, range or array holds; nothing of what is none."""
    try:
        return [] if isinstance(values, str | bytes) else list(values)
    except TypeError:
        return []


def _placing(
    degree: int | None, devices: Sequence[int] | None, kind: str, shares: Sequence[int] | None = None
) -> dict[str, Any]:
    if shares is not None:
        parts = _shares(shares, degree, kind)
        return _placing(len(parts), devices, kind) | {"shares": tuple(map(int, parts))}
    if degree is not None and (not _is_int(degree) or degree < 1):
        raise ScopeError(f"wh.{kind}(degree={degree!r}): give an integer of at least 1, or leave it out")
    if devices is None:
        return {"degree": None if degree is None else int(degree)}
    given = _listed(devices)
    if not given or not all(_is_int(d) and d >= 0 for d in given) or len(set(map(int, given))) != len(given):
        raise ScopeError(
            f"wh.{kind}(devices={devices!r}): give a list or range of different device numbers, 0 or more, "
            "as `whaleish doctor` lists them"
        )
    if degree is not None and len(given) % degree:
        raise ScopeError(
            f"wh.{kind}(degree={degree}, devices={given}): {len(given)} devices cannot be dealt out to {degree} "
            "parts; give a degree that divides them, or leave it out"
        )
    return {"degree": None if degree is None else int(degree), "devices": tuple(map(int, given))}


def _shares(shares: Sequence[int], degree: int | None, kind: str) -> Sequence[int]:
    given = _listed(shares)
    if not given or not all(_is_int(share) and share > 0 for share in given):
        raise ScopeError(f"wh.{kind}(shares={shares!r}): give a list of positive integers, one for each part: [3, 1]")
    if degree is not None and degree != len(given):
        raise ScopeError(f"wh.{kind}(degree={degree}, shares={given}): these are {len(given)} parts; leave degree out")
    return given
