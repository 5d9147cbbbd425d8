"""The steps of a distributed model: what Keras's loops call in place of what they would compile themselves.

Keras compiles a function that takes an iterator, fetches batches and runs a step on each. Here batches are fetched
outside, so that each has a shape that is known, and the step is a `wh.function`, compiled once for each shape.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from whaleish.planner import Plan
from whaleish.rules_by_name import Rules
from whaleish.step import Function

KINDS = ("train", "test", "predict")


class Steps:
    """Compiles and runs the three steps of a model.

    Attributes:
      compiled: of each of `KINDS` that the model has run the step.
    """

    def __init__(self, model: keras.Model, plan: Plan | None, rules: Rules | None) -> None:
        self.model, self.plan, self.rules = model, plan, rules
        self.compiled: dict[str, Function] = {}

    def install(self) -> None:
        """From now on the model's loops use these steps. What it had compiled is forgotten."""
        for kind in KINDS:
            setattr(self.model, f"{kind}_function", None)
            object.__setattr__(self.model, f"make_{kind}_function", functools.partial(self._make, kind))

    def _make(self, kind: str, force: bool = False) -> Callable[[Any], Any]:
        """What the model's `make_train_function` and its like do."""
        attribute = f"{kind}_function"
        if getattr(self.model, attribute) is None or force:
            self._check()
            plan = self.plan if kind == "train" else None
            compiled = self.compiled[kind] = Function(self._step(kind), plan=plan, rules=self.rules)
            run = self._predict if kind == "predict" else self._run
            setattr(self.model, attribute, functools.partial(run, compiled))
        made: Callable[[Any], Any] = getattr(self.model, attribute)
        return made

    def _step(self, kind: str) -> Callable[[Any], Any]:
        own = getattr(self.model, f"{kind}_step")

        def step(data: Any) -> Any:
            return own(data)

        step.__name__ = f"{self.model.name}.{kind}_step"
        unconverted: Callable[[Any], Any] = tf.autograph.experimental.do_not_convert(step)
        return unconverted

    def _run(self, compiled: Function, iterator: Iterator[Any]) -> Any:
        """Runs as many steps as Keras wants at a time, or as there are batches for; returns the last one's logs."""
        logs = None
        for _, data in zip(range(self.model.steps_per_execution), iterator, strict=False):
            logs = compiled(_without_optionals(data))
        if logs is None:
            raise StopIteration
        return logs

    def _predict(self, compiled: Function, batches: list[Any]) -> Any:
        """The predictions for some batches, joined."""
        made = [compiled(_without_optionals(data)) for data in batches]
        return made[0] if len(made) == 1 else keras.tree.map_structure(lambda *parts: tf.concat(parts, 0), *made)

    def _check(self) -> None:
        """Raises where the model wants to be run in a way that cannot be divided."""
        model = self.model
        if model.run_eagerly:
            raise ValueError(
                f"the model {model.name!r} is compiled with run_eagerly=True, which runs op by op on one device, and "
                "is distributed by wh.keras.distribute, which compiles whole steps. Compile it with run_eagerly=False; "
                "to look into a step, run a model that is not distributed"
            )
        if model.jit_compile is True:
            raise ValueError(
                f"the model {model.name!r} is compiled with jit_compile=True. Steps that are divided are run by "
                'TensorFlow without XLA: compile it with jit_compile=False, or "auto"'
            )


def _without_optionals(data: Any) -> Any:
    """Keras puts an empty optional where a dataset has nothing."""
    return keras.tree.map_structure(lambda leaf: None if isinstance(leaf, tf.experimental.Optional) else leaf, data)
