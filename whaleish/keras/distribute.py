"""`wh.keras.distribute`: the same model, whose `fit`, `evaluate` and `predict` run on all devices."""

from __future__ import annotations

from typing import TypeVar

import keras

from whaleish.keras.loops import LOOPS, joined_loop
from whaleish.keras.saving import SAVES, joined_save
from whaleish.keras.trainer import Steps
from whaleish.planner import Plan
from whaleish.rules_by_name import Rules, parse_rules
from whaleish.world import world

_Model = TypeVar("_Model", bound=keras.Model)

_ATTRIBUTE = "_whaleish_steps"


def distribute(model: _Model, *, plan: Plan | None = None, rules: Rules | None = None) -> _Model:
    """Has a model train, evaluate and predict on all devices of `wh.init()`, as it would on one.

    It stays the model that it is, with its weights, before or after `compile`. Batch sizes, learning rates and numbers
    of steps are those of the whole batch, on any number of devices. Over several processes all call `fit`, `evaluate`,
    `predict` and `save` alike, on the same data; the chief alone shows progress, and writes.

    Args:
      plan: for the training step, in place of the planner's; rules: scopes and layouts by name. Both as for
        `wh.function`, and together with scopes in the model's `call` or round its building.

    Returns:
      The model that was given.

    Raises:
      TypeError: it is no Keras model.
      ValueError: it has been distributed already.
    """
    here = world()
    if not isinstance(model, keras.Model):
        raise TypeError(f"wh.keras.distribute({type(model).__name__}): give a keras.Model")
    if hasattr(model, _ATTRIBUTE):
        raise ValueError(
            f"wh.keras.distribute: the model {model.name!r} is distributed already; once is enough, also for models "
            "that are compiled again"
        )
    parse_rules(rules or {})
    steps = Steps(model, plan, rules)
    object.__setattr__(model, _ATTRIBUTE, steps)
    steps.install()
    if here.distributed:
        for names, joined in ((LOOPS, joined_loop), (SAVES, joined_save)):
            for name in names:
                object.__setattr__(model, name, joined(model, name))
    return model
