"""Programs: straight-line TensorFlow code as text, with the values that it begins with.

def program(arguments, variables):
    (a0,), (v0,) = arguments, variables
    with tf.GradientTape() as tape:
        tape.watch([a0])
        t0 = tf.matmul(a0, v0)
        loss = total(fresh(0, 2, 3) * t0)
    gradients = tape.gradient(loss, [a0, v0])
    v0.assign_sub(0.1 * gradients[1])
    return {"t0": t0, "loss": loss, "d_a0": gradients[0], "d_v0": gradients[1]}
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

import whaleish as wh

Step = Callable[[Sequence[Any], Sequence[tf.Variable]], dict[str, Any]]


def fresh(seed: int, *shape: int) -> np.ndarray:
    """Values between -1 and 1 without pattern, no two alike, none near zero: the sine of unequal steps."""
    count = int(np.prod(shape, dtype=int))
    steps = np.arange(1, count + 1)
    return (np.sin(steps * (1.37 + 0.11 * seed) + 0.013 * steps**2 + seed) + 0.017).reshape(shape)


def whole_numbers(seed: int, limit: int, *shape: int) -> np.ndarray:
    """int32 below a limit, which may be the length of a dim."""
    return (np.abs(fresh(seed, *shape)) * 7919).astype("int32") % max(limit, 1)


def total(*tensors: tf.Tensor) -> tf.Tensor:
    return tf.add_n([tf.zeros([], tf.float64), *map(tf.reduce_sum, tensors)])


NAMES = {"tf": tf, "np": np, "wh": wh, "fresh": fresh, "whole_numbers": whole_numbers, "total": total}
"""What the code may use."""


@dataclass(frozen=True, eq=False)
class Program:
    """Code and what it begins with.

    Attributes:
      arguments, variables: name -> value.
      body: (scope, statement), under the tape; the scope is code for a `with`, or "".
      updates: statements after the tape, which assign.
      results: names of the tensors to return; differentiated: those of them, all float64, that make up the loss.
      shapes, dtypes: of each tensor and variable, by name.
    """

    arguments: dict[str, np.ndarray]
    variables: dict[str, np.ndarray]
    body: tuple[tuple[str, str], ...]
    updates: tuple[str, ...]
    results: tuple[str, ...]
    differentiated: tuple[str, ...]
    shapes: dict[str, tuple[int, ...]]
    dtypes: dict[str, str]

    @property
    def lines(self) -> list[str]:
        sources = [*(n for n, value in self.arguments.items() if value.dtype == np.float64), *self.variables]
        returned = ["loss", *(f"d_{name}" for name in sources), *self.results]
        return [
            "def program(arguments, variables):",
            f"    [{', '.join(self.arguments)}], [{', '.join(self.variables)}] = arguments, variables",
            "    with tf.GradientTape() as tape:",
            f"        tape.watch([{', '.join(n for n in sources if n in self.arguments)}])",
            *self._scoped(),
            f"        loss = total({', '.join(map(self._weighed, self.differentiated))})",
            f"    gradients = tape.gradient(loss, [{', '.join(sources)}], unconnected_gradients='zero')",
            f"    [{', '.join(f'd_{name}' for name in sources)}] = map(tf.convert_to_tensor, gradients)",
            *(f"    {line}" for line in self.updates),
            f"    return dict({', '.join(f'{name}={name}' for name in returned)})",
        ]

    def _scoped(self) -> Iterator[str]:
        for scope, statements in itertools.groupby(self.body, lambda item: item[0]):
            if scope:
                yield f"        with {scope}:"
            yield from (f"        {'    ' if scope else ''}{statement}" for _, statement in statements)

    def _weighed(self, name: str) -> str:
        """No two elements weigh the same, so that their gradients differ."""
        seed = self.differentiated.index(name)
        return f"fresh({', '.join(map(str, (seed, *self.shapes[name])))}) * {name}"

    def __repr__(self) -> str:
        return f"Program of {len(self.body)} statements"

    def step(self, number: int) -> Step:
        """The code as a function; the number tells the programs of one step apart in tracebacks."""
        made: dict[str, Any] = dict(NAMES)
        exec(compile("\n".join(self.lines), place(number), "exec"), made)
        return made["program"]


def place(number: int) -> str:
    """What the file of program `number` is called."""
    return f"program{number}"
