"""What a rule is: the legal signatures of an op on one mesh axis, and how its parts are carried out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np

from whaleish.sbp import B, Layout, Sbp


class TensorSpec(NamedTuple):
    """Shape and dtype of an op's input or output.

    A resource tensor has dtype "resource" and the shape of its variable; `shape` is None where it is unknown.
    """

    shape: tuple[int, ...] | None
    dtype: str

    @property
    def rank(self) -> int:
        """Number of dims; -1 where unknown, so that `range(spec.rank)` offers no split."""
        return -1 if self.shape is None else len(self.shape)


@dataclass(frozen=True, slots=True)
class OpView:
    """What a rule sees of an op: no names, no graph.

    Attributes:
      constants: for each input its value where that is known before running, else None.
    """

    type: str
    attrs: Mapping[str, Any]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    constants: tuple[np.ndarray | None, ...]

    @property
    def is_static(self) -> bool:
        """Whether all shapes are known; where they are not, few rules are asked, and most ops run whole."""
        return all(spec.shape is not None for spec in (*self.inputs, *self.outputs))

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal for ops that have the same signatures."""
        attrs = tuple(sorted((name, _hashable(value)) for name, value in self.attrs.items()))
        constants = tuple(None if c is None else (c.shape, c.tobytes()) for c in self.constants)
        return self.type, attrs, self.inputs, self.outputs, constants


def _hashable(value: Any) -> Any:
    return tuple(map(_hashable, value)) if isinstance(value, list | tuple) else value


class Signature(NamedTuple):
    """One legal way to carry out an op on one axis: layouts of its inputs and of its outputs.

    All its split dims have the same number of units (length / unit), so that they are cut at proportional places. A
    signature therefore stays legal when all its units are multiplied by one number, and the planner does so where an
    input comes with larger units; rules give the smallest.

    Attributes:
      expands: the op is then carried out as the rule's `expand` writes it, in primitive ops that communicate.
      inner_bytes: size of the logical tensors that are all-reduced inside, where it communicates: when it expands, and
        where it makes more of a tensor than its inputs say (`MergeRows`).
    """

    inputs: tuple[Sbp, ...]
    outputs: tuple[Sbp, ...]
    expands: bool = False
    inner_bytes: int = 0

    def __str__(self) -> str:
        return f"{', '.join(map(str, self.inputs))} -> {', '.join(map(str, self.outputs))}"


def all_broadcast(op: OpView) -> Signature:
    """The signature that is always legal: every part does the whole op."""
    return Signature((B,) * len(op.inputs), (B,) * len(op.outputs))


Ref = Any
"""A tensor inside a lowering; only the `Lowering` that made it knows what it is."""


class Lowering(Protocol):
    """The hands of a rule's `lower`: one part of one op, on a mesh of any number of axes.

    `layout_*` are whole layouts (an entry per axis). `start_*` and `shape_*` give the slice of the logical tensor that
    this part holds: where it begins in each dim, and its local shape.
    """

    op: OpView

    def input(self, index: int) -> Ref: ...
    def layout_in(self, index: int) -> Layout: ...
    def layout_out(self, index: int) -> Layout: ...
    def shape_in(self, index: int) -> tuple[int, ...]: ...
    def shape_out(self, index: int) -> tuple[int, ...]: ...
    def start_in(self, index: int) -> tuple[int, ...]: ...
    def start_out(self, index: int) -> tuple[int, ...]: ...
    def const(self, value: Any, dtype: str) -> Ref:
        """A constant tensor; `dtype` is TensorFlow's name for it."""
        ...

    def emit(self, type: str, inputs: Sequence[Ref], /, outputs: int = 1, **attrs: Any) -> Any:
        """Adds an op and returns its output (a list of them unless there is exactly one)."""
        ...

    def same(self, inputs: Mapping[int, Ref] | None = None, **attrs: Any) -> list[Ref]:
        """The op itself on this part's inputs, with some inputs or attributes replaced; returns its outputs."""
        ...


class Fragment:
    """An op written out in primitive ops: a small logical graph on the op's own inputs.

    Values are integers: 0..n-1 the inputs of the op, then the outputs of the ops added, in order.

    Attributes:
      held: value -> its layout on the axis that expands, where the rule does not leave that to whoever picks
        signatures (a unit of 1 stands for any unit). Picking step by step sees what a step costs, not what its
        layout will cost later.
    """

    def __init__(self, op: OpView) -> None:
        self.op = op
        self.specs: list[TensorSpec] = list(op.inputs)
        self.constants: dict[int, np.ndarray] = {}
        self.steps: list[tuple[str, tuple[int, ...], tuple[int, ...], dict[str, Any]]] = []
        self.outputs: tuple[int, ...] = ()
        self.held: dict[int, Sbp] = {}

    def allows(self, made: Sequence[int], signature: Signature) -> bool:
        """Whether a signature leaves the values that it makes in the layouts in which they are held."""
        pairs = zip((self.held.get(value) for value in made), signature.outputs, strict=True)
        return all(held is None or (held.kind, held.dim) == (sbp.kind, sbp.dim) for held, sbp in pairs)

    def emit(self, type: str, inputs: Sequence[int], outputs: Sequence[TensorSpec], **attrs: Any) -> Any:
        """Adds an op with the given output specs and returns its value (a tuple unless there is exactly one)."""
        first = len(self.specs)
        self.specs += outputs
        made = tuple(range(first, len(self.specs)))
        self.steps.append((type, tuple(inputs), made, attrs))
        return made[0] if len(made) == 1 else made

    def const(self, value: Any, dtype: str) -> int:
        """A constant (dtype by TensorFlow's name, which must be one of numpy's)."""
        array = np.asarray(value, dtype)
        made = self.emit("Const", (), [TensorSpec(array.shape, dtype)], dtype=dtype)
        self.constants[made] = array
        return int(made)


@dataclass(frozen=True)
class Rule:
    """Signatures of a family of ops.

    Attributes:
      signatures: op -> legal signatures on one axis besides all-B; only those legal for parts of any size.
      lower: carries out one part where that takes more than the same op on the local inputs. It serves every
        signature of the rule and every number of axes, so it looks at layouts, starts and local shapes.
      expand: writes the op out in primitive ops, for signatures with `expands`.
      split_empty: whether parts may be of size zero.
      unknown: whether it serves ops that have tensors of unknown shape, which then are B in all its signatures.
      always: whether `lower` carries out whole ops too, where all shapes are known.
    """

    signatures: Callable[[OpView], list[Signature]]
    lower: Callable[[Lowering], list[Ref]] | None = None
    expand: Callable[[OpView], Fragment] | None = None
    split_empty: bool = True
    unknown: bool = False
    always: bool = False


@dataclass
class Registry:
    """Op type -> rule."""

    rules: dict[str, Rule] = field(default_factory=dict)

    def register(
        self,
        *types: str,
        lower: Callable[[Lowering], list[Ref]] | None = None,
        expand: Callable[[OpView], Fragment] | None = None,
        split_empty: bool = True,
        unknown: bool = False,
        always: bool = False,
    ) -> Callable[[Callable[[OpView], list[Signature]]], Callable[[OpView], list[Signature]]]:
        """Decorates the signatures function of a family."""

        def add(signatures: Callable[[OpView], list[Signature]]) -> Callable[[OpView], list[Signature]]:
            rule = Rule(signatures, lower, expand, split_empty, unknown, always)
            for type in types:
                if type in self.rules:
                    raise ValueError(f"op type {type} has a rule already")
                self.rules[type] = rule
            return signatures

        return add

    def get(self, type: str) -> Rule | None:
        return self.rules.get(type)

    def signatures(self, op: OpView) -> list[Signature]:
        """Every legal signature of an op on one axis, all-B first."""
        rule = self.rules.get(op.type)
        found = [all_broadcast(op)]
        if rule is not None and (op.is_static or rule.unknown):
            found += [s for s in rule.signatures(op) if s != found[0]]
        return found


registry = Registry()
"""The rules of every family in `whaleish.rules`."""
