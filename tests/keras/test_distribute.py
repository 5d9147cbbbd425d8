"""`wh.keras.distribute`: logs, weights and predictions are those of the same calls on one device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import pytest

import whaleish as wh
from tests.keras.registry import REGISTRY
from tests.products import pairwise

BATCH, EPOCHS = 8, 2


@dataclass
class Run:
    """What came of training a model.

    Attributes:
      logs: of each epoch, by name; evaluated: by name. weights, predicted: flat.
      whole: the largest share of the work of a training step that one device did.
    """

    logs: dict[str, list[float]]
    evaluated: dict[str, float]
    weights: list[np.ndarray]
    predicted: list[np.ndarray]
    whole: float = 1.0


def train(name: str, distributed: bool, steps: int = 1) -> Run:
    keras.utils.set_random_seed(5)
    model, data = REGISTRY[name]()
    model.steps_per_execution = steps
    if distributed:
        wh.keras.distribute(model)
    inputs = data["x"]
    validation = (data["x"], data["y"])
    history = model.fit(**data, batch_size=BATCH, epochs=EPOCHS, verbose=0, validation_data=validation)
    evaluated = model.evaluate(data["x"], data["y"], batch_size=5, verbose=0, return_dict=True)
    predicted = keras.tree.flatten(model.predict(inputs, batch_size=9, verbose=0))
    weights = [np.asarray(weight) for weight in (*model.weights, *model.optimizer.variables)]
    return Run(history.history, evaluated, weights, predicted, _largest_share(model) if distributed else 1.0)


def _largest_share(model: Any) -> float:
    """Of the FLOPs of a training step, of a whole batch."""
    programs = model._whaleish_steps.compiled["train"]._programs.values()
    shares = [program.shares() for program in programs]
    return min(max(share.flops for share in each) / max(each[0].step_flops, 1) for each in shares)


def check(name: str, plain: Run, spread: Run, devices: int) -> None:
    close: dict[str, Any] = {"rtol": 2e-3, "atol": 2e-3} if name == "half" else {"rtol": 2e-5, "atol": 2e-5}
    assert spread.logs.keys() == plain.logs.keys()
    for key, values in plain.logs.items():
        if key.endswith("_loss") and name == "several_ends" and key != "val_loss":
            continue  # see test_losses_of_outputs_are_weighted_by_rows
        np.testing.assert_allclose(spread.logs[key], values, err_msg=key, **close)
    for key, value in plain.evaluated.items():
        if key.endswith("_loss") and name == "several_ends":
            continue
        np.testing.assert_allclose(spread.evaluated[key], value, err_msg=key, **close)
    for ours, theirs in zip(spread.predicted, plain.predicted, strict=True):
        np.testing.assert_allclose(ours, theirs, **close)
    for ours, theirs in zip(spread.weights, plain.weights, strict=True):
        np.testing.assert_allclose(ours, theirs, **close)
    assert spread.whole <= 1.35 / devices


@pytest.mark.parametrize(*pairwise(name=REGISTRY, world_of=[1, 2, 4], steps=[1, 2]), indirect=["world_of"])
def test_as_on_one_device(name: str, world_of: int, steps: int) -> None:
    check(name, train(name, False, steps), train(name, True, steps), world_of)


def test_losses_of_outputs_are_weighted_by_rows() -> None:
    """Keras counts each batch alike in them, unless all batches are known to be of one size."""
    model, data = REGISTRY["several_ends"]()
    wh.keras.distribute(model)
    found = model.evaluate(data["x"], data["y"], batch_size=5, verbose=0, return_dict=True)
    predicted = model.predict(data["x"], verbose=0)
    expected = np.mean((predicted["number"] - data["y"]["number"]) ** 2)
    np.testing.assert_allclose(found["number_loss"], expected, rtol=1e-5)
    np.testing.assert_allclose(found["loss"], 0.3 * found["number_loss"] + found["kind_loss"], rtol=1e-5)
