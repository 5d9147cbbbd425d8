"""Training under nested scopes, on meshes of two axes, equals one device, and both axes divide the work."""

from __future__ import annotations

import itertools

import pytest

from tests.products import either
from tests.transparency.compare import Outcome, compare

SCOPES = [
    "replica x split",
    "replica x split, then split",
    "replica, then replica x split",
    "split x replica",
    "split x split",
]
MODELS = ["mlp", "cnn", "transformer", "classifier"]


def check(outcome: Outcome, model: str, scopes: str, batch: int) -> None:
    assert outcome.losses <= 1e-9
    assert outcome.weights <= 1e-9
    even = 1 / 4 if batch % 4 == 0 else -(-batch // 4) / batch
    for device, share in outcome.work.items():
        assert share <= even + 0.05, f"{device} did {share:.1%} of the work"
    assert outcome.stored, "no variable is sharded"
    for name, share in outcome.stored.items():
        assert share <= outcome.even[name], f"{name}: one device stores {share:.1%}"
        # Vectors lie as what they are added to, which is whole on an axis whose sums have just been added up.
        small = any(word in name for word in ("bias", "gamma", "beta", "moving_"))
        axes = 2 if scopes == "split x split" and not small else 1
        assert share <= 0.5**axes + 0.09, f"{name}: one device stores {share:.1%}"
    if scopes == "replica x split, then split":
        assert min(outcome.stored.values()) <= 0.25, "the head is sharded over one axis only"
    if model == "classifier":
        assert not {(batch, 1000), (batch // 2, 1000)} & outcome.shapes, "the logits are whole on a device"


@pytest.mark.parametrize("world_of", [4], indirect=True)
@pytest.mark.parametrize(
    ("model", "scopes", "optimizer", "batch"),
    either(
        [
            *(("mlp", scopes, "sgd", 10) for scopes in SCOPES),
            ("cnn", "replica x split", "adamw", 12),
            ("transformer", "split x replica", "adamw", 12),
            ("classifier", "replica x split, then split", "sgd", 12),
        ],
        itertools.product(MODELS, SCOPES, ["sgd", "adamw"], [12, 10]),
    ),
)
def test_in_one_process(model: str, world_of: int, scopes: str, optimizer: str, batch: int) -> None:
    check(compare(model, scopes, optimizer, True, batch), model, scopes, batch)


@pytest.mark.ranks
@pytest.mark.parametrize("ranks", [4], indirect=True)
@pytest.mark.parametrize(
    ("model", "scopes", "batch"),
    either(
        [("mlp", SCOPES[0], 10), ("classifier", SCOPES[1], 12), ("cnn", SCOPES[3], 12), ("transformer", SCOPES[0], 12)],
        itertools.product(MODELS, SCOPES, [12, 10]),
    ),
)
def test_on_real_ranks(ranks, model: str, scopes: str, batch: int) -> None:
    for outcome in ranks.run(_on_rank, model, scopes, batch, timeout=200):
        check(outcome, model, scopes, batch)


@pytest.mark.ranks
def test_an_axis_of_one_part(ranks) -> None:
    for outcome in ranks.run(_on_rank, "mlp", "replica(1) x split", 12, timeout=100):
        assert outcome.losses <= 1e-9
        assert outcome.weights <= 1e-9
        assert max(outcome.work.values()) <= 0.55
        assert outcome.stored


def _on_rank(model: str, scopes: str, batch: int) -> Outcome:
    import whaleish
    from tests.transparency.compare import compare

    whaleish.init()
    return compare(model, scopes, "sgd", True, batch)
