"""The user's scopes: context managers that annotate the ops made inside them.

A scope changes no op. Each op that is traced inside carries the path of its scopes as a string attribute, which capture
parses back into `graph.Scope`s:

    replica#0(degree=2)/stage#3(devices=(0, 1))

The number counts the scopes entered in one graph, so it is the same on all processes that trace the same code.
"""

from __future__ import annotations

import ast
import re
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from whaleish.graph import Scope, ScopePath
from whaleish.schedule import check_given

ATTRIBUTE = "_whaleish_scope"
"""Name of the op attribute that holds the path."""

_open = threading.local()  # .entered: what each scope now open on this thread has to undo, innermost last


class ScopeError(ValueError):
    """A scope that makes no sense where it stands."""

    # Autograph raises an error of the user's code again with more text, and keeps its type only if this holds.
    __init__ = Exception.__init__


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
        _entered().append(_enter(self))

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        undo, is_empty = _entered().pop()
        undo.close()
        if kind is None and self.kind == "stage" and is_empty():
            raise ScopeError(
                f"{self} has no op inside, so there is nothing to place on its devices. Put the part of the model that "
                "it is for into it, or take it away"
            )

    def __str__(self) -> str:
        return f"wh.{self.kind}({', '.join(f'{name}={value!r}' for name, value in self.options)})"


def replica(
    degree: int | None = None,
    devices: Sequence[int] | None = None,
    zero: int = 0,
    shares: Sequence[int] | None = None,
) -> ScopeContext:
    """Ops inside run with the batch dim split over an axis of `degree` parts.

    Scopes that nest are axes of a mesh: `replica(2)` round `split()` is data parallel over two groups of devices, each
    of which shards the weights. The scopes of a step share all devices (`devices` must name all of them), so the
    degrees of a nest multiply to their number. `zero` must be 0; else `wh.function` raises a `PlanError`.

    Args:
      degree: number of parts; None: what the other axes leave.
      devices: indices into the devices of `wh.init()`, as a list or range; None: all.
      zero: variables are whole (0), or have sharded slots (1), gradients too (2), weights too (3).
      shares: for devices that are not equally fast, how much each part does, `[3, 1]`; in place of `degree`.
    """
    if zero not in (0, 1, 2, 3):
        raise ScopeError(f"wh.replica(zero={zero!r}): zero is 0, 1, 2 or 3")
    return _scope("replica", _placing(degree, devices, "replica", shares), zero=zero or None)


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
    return _scope("split", _placing(degree, devices, "split", shares), dim=dim)


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
    except (ValueError, TypeError, AttributeError) as error:
        raise ScopeError(f"wh.pipeline(schedule={schedule!r}): {error}") from error
    return _scope(
        "pipeline",
        micro_batches=int(micro_batches),
        schedule=None if schedule == "1f1b" else schedule,
        recompute=bool(recompute) or None,
    )


def local_statistics() -> ScopeContext:
    """Means over the split batch inside take each part's own batch: faster, and another result.

    Batch norm then normalises by the statistics of the part's own batch, as Horovod's users have it, and what it
    assigns to variables is the mean over the parts. Means that leave a single number, such as a loss, stay those of the
    whole batch.
    """
    return _scope("local_statistics")


def auto() -> ScopeContext:
    """Ops inside are left to the planner. Not compiled yet."""
    return _scope("auto")


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


def check(path: ScopePath) -> None:
    """Raises `ScopeError` where the innermost scope of the path makes no sense inside the others."""
    *outer, inner = path
    for scope in outer:
        _check_pair(scope, inner)


_STRING = r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\""
_SCOPE = re.compile(rf"(\w+)#(\d+)(?:\(((?:[^()'\"]|{_STRING}|\([^()]*\))*)\))?(?:/(?=\w)|$)")

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


def _text(scope: Scope) -> str:
    return str(ScopeContext(scope.kind, scope.options))


def _encode_one(scope: Scope) -> str:
    options = ", ".join(f"{name}={value!r}" for name, value in scope.options)
    return f"{scope.kind}#{scope.number}" + (f"({options})" if options else "")


def _parse_options(text: str | None) -> tuple[tuple[str, Any], ...]:
    if not text:
        return ()
    call = ast.parse(f"f({text})", mode="eval").body
    assert isinstance(call, ast.Call)
    return tuple((str(word.arg), ast.literal_eval(word.value)) for word in call.keywords)


def _scope(kind: str, placing: dict[str, Any] | None = None, **options: Any) -> ScopeContext:
    given = {**(placing or {}), **options}
    return ScopeContext(kind, tuple(sorted((name, value) for name, value in given.items() if value is not None)))


def _is_int(value: Any) -> bool:
    return hasattr(value, "__index__") and not isinstance(value, bool)


def _placing(
    degree: int | None, devices: Sequence[int] | None, kind: str, shares: Sequence[int] | None = None
) -> dict[str, Any]:
    if shares is not None:
        return _placing(len(_shares(shares, degree, kind)), devices, kind) | {"shares": tuple(map(int, shares))}
    if degree is not None and (not _is_int(degree) or degree < 1):
        raise ScopeError(f"wh.{kind}(degree={degree!r}): give an integer of at least 1, or leave it out")
    if devices is None:
        return {"degree": None if degree is None else int(degree)}
    given = list(devices) if isinstance(devices, Iterable) and not isinstance(devices, str) else []
    if not given or not all(_is_int(d) and d >= 0 for d in given) or len(set(given)) != len(given):
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
    given = list(shares) if isinstance(shares, Sequence) and not isinstance(shares, str) else []
    if not given or not all(_is_int(share) and share > 0 for share in given):
        raise ScopeError(f"wh.{kind}(shares={shares!r}): give a list of positive integers, one for each part: [3, 1]")
    if degree is not None and degree != len(given):
        raise ScopeError(f"wh.{kind}(degree={degree}, shares={given}): these are {len(given)} parts; leave degree out")
    return given


def _entered() -> list[tuple[ExitStack, Callable[[], bool]]]:
    try:
        return _open.entered
    except AttributeError:
        _open.entered = []
        return _open.entered


def _enter(scope: ScopeContext) -> tuple[ExitStack, Callable[[], bool]]:
    """Annotates what is made from now on; returns what ends that, and says whether nothing was made."""
    # TensorFlow is imported here and not above: scopes as data serve tools that do without it.
    from whaleish.capture import tf_private

    graph = tf_private.traced_graph()
    if graph is None:
        if tf_private.inside_keras_call():
            # A model whose `call` has scopes, called eagerly, is what it is in plain TensorFlow.
            return ExitStack(), lambda: False
        raise ScopeError(
            f"{scope} was entered outside any traced function, where it has nothing to annotate. Enter it inside the "
            "function given to wh.function, or in a Keras layer's `call`; round the building of a functional model it "
            "is not compiled yet"
        )
    around = parse(tf_private.current_attribute(graph, ATTRIBUTE) or "")
    path = (*around, Scope(scope.kind, tf_private.next_number(graph), scope.options))
    outer = tf_private.outer_graph(graph)
    while outer is not None:
        around = parse(tf_private.current_attribute(outer, ATTRIBUTE) or "") + around
        outer = tf_private.outer_graph(outer)
    check((*around, path[-1]))
    undo = ExitStack()
    undo.enter_context(tf_private.op_attribute(graph, ATTRIBUTE, encode(path)))
    made = graph.version
    return undo, lambda: bool(graph.version == made)
