"""A draft: a program while it is drawn, statement by statement, each carried out at once on one device.

So every draw knows shapes and values: it takes what suits an operation, keeps away from the points where an operation
jumps, and keeps numbers small.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tests.programs.program import NAMES, Program

LARGEST = 3.0
"""Values above this are squashed."""

ELEMENTS = 240
"""No tensor has more elements."""

APART = 1e-5
"""How far values stay from where an operation jumps; far above rounding, far below the values' own spread."""


class Unsuited(Exception):
    """Nothing in the draft suits the operation that was drawn."""


class Draft:
    """What has been drawn so far.

    Attributes:
      pick: draws one of several options; raises Unsuited where there are none.
      values: name -> tensor or variable.
      scope: of the statements to come.
    """

    def __init__(self, pick: Callable[[Sequence[Any]], Any]) -> None:
        self.pick = pick
        self.scope = ""
        self.values: dict[str, Any] = {}
        self.arguments: dict[str, np.ndarray] = {}
        self.variables: dict[str, np.ndarray] = {}
        self.body: list[tuple[str, str]] = []
        self.updates: list[str] = []

    # What an operation takes. ---------------------------------------------------------------------------------------

    def take(self, suits: Callable[[Any], bool] = lambda value: True, dtype: str = "float64") -> str:
        """The name of a value of a type."""
        found = [name for name, v in self.values.items() if v.dtype == dtype and suits(v)]
        return self.pick([*found, *2 * found[-3:]])  # the last ones more often, so that programs are deep

    def ranked(self, least: int, most: int = 6, dtype: str = "float64") -> str:
        """The name of a value with so many dims."""
        return self.take(lambda value: least <= value.shape.rank <= most, dtype)

    def weight(self, *shape: int) -> str:
        """Something of a shape: a value, a constant, a new variable or argument."""
        kind = self.pick(["constant", "argument", "variable", "value", "variable"])
        if kind == "constant":
            return f"fresh({', '.join(map(str, (self.pick(range(8)), *shape)))})"
        if kind == "value":
            return self.take(lambda value: value.shape == shape)
        return self.start(kind, fresh_value(self.pick(range(8)), shape))

    def start(self, kind: str, value: np.ndarray) -> str:
        """A new argument, or a new variable."""
        if kind == "variable" and not value.size:
            raise Unsuited  # whaleish lays out no variable without elements
        kept = self.arguments if kind == "argument" else self.variables
        name = f"{kind[0]}{len(kept)}"
        kept[name] = value
        self.values[name] = tf.Variable(value) if kind == "variable" else tf.constant(value)
        return name

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self.values[name].shape)

    def axis(self, name: str) -> int:
        """A dim of a value."""
        return self.pick(range(len(self.shape(name))))

    def axes(self, name: str) -> list[int]:
        """Some dims of a value, at least one."""
        return sorted({self.axis(name) for _ in range(self.pick(range(1, 4)))})

    def order(self, count: int) -> list[int]:
        """The numbers below `count`, in some order."""
        rest, made = list(range(count)), []
        while rest:
            made.append(rest.pop(self.pick(range(len(rest)))))
        return made

    # Where it may take it. ------------------------------------------------------------------------------------------

    def array(self, name: str) -> np.ndarray:
        return np.asarray(self.eval(name))

    def off(self, name: str, *points: float) -> str:
        """The name, if no element is near one of the points."""
        value = self.array(name)
        if any(np.any(np.abs(value - point) < APART) for point in points):
            raise Unsuited
        return name

    def unlike(self, a: str, b: str) -> None:
        """Requires that the elements of two values, broadcast, differ clearly."""
        if np.any(np.abs(self.array(a) - self.array(b)) < APART):
            raise Unsuited

    def distinct(self, name: str, axes: Sequence[int] | None = None) -> str:
        """The name, if the elements along some dims (all: None) differ clearly."""
        value = self.array(name)
        if not value.size:
            return name
        axes = range(value.ndim) if axes is None else axes
        rest = [k for k in range(value.ndim) if k not in axes]
        rows = np.transpose(value, [*rest, *axes]).reshape([*(value.shape[k] for k in rest), -1])
        if np.any(np.diff(np.sort(rows, -1), axis=-1) < APART):
            raise Unsuited
        return name

    def off_steps(self, name: str) -> str:
        """The name, if no element is near a multiple of a half, where rounding jumps."""
        doubled = 2 * self.array(name)
        if np.any(np.abs(doubled - np.rint(doubled)) < APART):
            raise Unsuited
        return name

    # What it makes. -------------------------------------------------------------------------------------------------

    def eval(self, code: str) -> Any:
        """Carries code out; what TensorFlow refuses is unsuited."""
        try:
            return eval(code, NAMES, self.values)
        except (tf.errors.OpError, ValueError, TypeError) as error:
            raise Unsuited(code) from error

    def add(self, code: str) -> str:
        """Appends `name = code`; numbers that grew are squashed in another statement. Returns the name of the result.

        Raises:
          Unsuited: TensorFlow refuses, or the result is too big or not finite.
        """
        value = self.eval(code)
        self._check(value)
        name = f"t{len(self.values)}"
        self.body.append((self.scope, f"{name} = {code}"))
        self.values[name] = value
        largest = np.max(np.abs(value.numpy().astype(complex)), initial=0.0)
        if value.dtype == tf.float64 and largest > LARGEST:
            return self.add(f"tf.asinh({name})")
        if value.dtype.is_integer and largest > 1000:
            return self.add(f"tf.math.floormod({name}, tf.constant(11, {name}.dtype))")
        return name

    def add_list(self, code: str) -> list[str]:
        """Appends `[name, name...] = code`."""
        values = list(self.eval(code))
        self._check(*values)
        names = [f"t{len(self.values) + k}" for k in range(len(values))]
        self.body.append((self.scope, f"[{', '.join(names)}] = {code}"))
        for name, value in zip(names, values, strict=True):
            self.values[name] = value
        return names

    def assign(self, code: str) -> None:
        """Appends a statement that assigns to a variable."""
        self.eval(code)
        self.body.append((self.scope, code))

    def _check(self, *values: tf.Tensor) -> None:
        for value in values:
            array = value.numpy()
            if array.size > ELEMENTS or array.ndim > 6:
                raise Unsuited
            if array.dtype.kind in "fc" and not np.all(np.abs(array) < 1e6):
                raise Unsuited

    # What it comes to. ----------------------------------------------------------------------------------------------

    def finish(self, results: Sequence[str]) -> Program:
        floats = tuple(name for name in results if self.values[name].dtype == tf.float64)
        used = set(re.findall(r"\b[av]\d+\b", "\n".join([*(code for _, code in self.body), *self.updates])))
        return Program(
            {name: value for name, value in self.arguments.items() if name in used},
            {name: value for name, value in self.variables.items() if name in used},
            tuple(self.body),
            tuple(self.updates),
            tuple(results),
            floats,
            {name: tuple(value.shape) for name, value in self.values.items()},
            {name: value.dtype.name for name, value in self.values.items()},
        )


def fresh_value(seed: int, shape: Sequence[int]) -> np.ndarray:
    return NAMES["fresh"](seed, *shape)
