"""Training under nested scopes, on meshes of two axes, equals one device, and both axes divide the work."""

from __future__ import annotations

import pytest

from tests.products import pairwise
from tests.transparency.compare import Outcome, compare

SCOPES = [
    "replica x split",
    "replica x split, then split",
    "replica, then replica x split",
    "split x replica",
    "split x split",
]
MODELS = ["mlp", "cnn", "transformer", "classifier"]


def check(outcome: Outcome, model: str, scopes: str) -> None:
    assert outcome.losses <= 1e-9
    assert outcome.weights <= 1e-9
    assert outcome.stored, "no variable is sharded"


@pytest.mark.parametrize("world_of", [4], indirect=True)
@pytest.mark.parametrize(*pairwise(model=MODELS, scopes=SCOPES, optimizer=["sgd", "adamw"], batch=[12, 10]))
def test_in_one_process(model: str, world_of: int, scopes: str, optimizer: str, batch: int) -> None:
    check(compare(model, scopes, optimizer, True, batch), model, scopes)
