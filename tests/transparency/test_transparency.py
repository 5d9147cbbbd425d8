"""Training under scopes equals training on one device, and the work is really divided."""

from __future__ import annotations

import pytest

from tests.products import pairwise
from tests.transparency.compare import Outcome, compare

SCOPES = ["replica", "split", "replica-then-split"]
SMALL = ["mlp", "cnn", "transformer", "classifier"]


def check(outcome: Outcome, size: int, model: str, scopes: str, batch: int, tolerance: float = 1e-9) -> None:
    """What must hold on every rank (over ranks, `outcome.work` has this rank's device alone)."""
    assert outcome.losses <= tolerance
    assert outcome.weights <= tolerance
    # Uneven parts make the largest one larger than 1/p.
    even = 1 / size if batch % size == 0 else -(-batch // size) / batch
    for device, share in outcome.work.items():
        assert share <= even + 0.05, f"{device} did {share:.1%} of the work"
    if size > 1 and scopes != "replica":
        assert outcome.stored, "no variable is sharded"
        for name, share in outcome.stored.items():
            assert share <= outcome.even[name], f"{name}: one device stores {share:.1%}"
        if model == "classifier":
            assert (batch, 1000) not in outcome.shapes, "the logits are whole on a device"


@pytest.mark.parametrize(
    *pairwise(
        model=SMALL,
        world_of=[1, 2, 3, 4],
        scopes=SCOPES,
        optimizer=["sgd", "adamw"],
        clip=[False, True],
        batch=[12, 10],
    ),
    indirect=["world_of"],
)
def test_in_one_process(model: str, world_of: int, scopes: str, optimizer: str, clip: bool, batch: int) -> None:
    check(compare(model, scopes, optimizer, clip, batch), world_of, model, scopes, batch)


@pytest.mark.ranks
@pytest.mark.parametrize(
    *pairwise(
        ranks=[2, 4],
        model=SMALL,
        scopes=SCOPES,
        optimizer=["sgd", "adamw"],
        clip=[False, True],
        batch=[12, 10],
    ),
    indirect=["ranks"],
)
def test_on_real_ranks(ranks, model: str, scopes: str, optimizer: str, clip: bool, batch: int) -> None:
    for outcome in ranks.run(_on_rank, model, scopes, optimizer, clip, batch, timeout=120):
        check(outcome, ranks.size, model, scopes, batch)


def _on_rank(model: str, scopes: str, optimizer: str, clip: bool, batch: int) -> Outcome:
    import whaleish
    from tests.transparency.compare import compare

    whaleish.init()
    return compare(model, scopes, optimizer, clip, batch)


@pytest.mark.parametrize("world_of", [2, 4], indirect=True)
@pytest.mark.parametrize("scopes", SCOPES)
def test_in_float32(world_of: int, scopes: str) -> None:
    check(compare("mlp", scopes, "sgd", False, 12, "float32"), world_of, "mlp", scopes, 12, tolerance=1e-5)


@pytest.mark.parametrize("world_of", [2], indirect=True)
def test_resnet50(world_of: int) -> None:
    outcome = compare("resnet50", "replica-then-split", "sgd", False, 6)
    check(outcome, world_of, "resnet50", "replica-then-split", 6)


@pytest.mark.ranks
def test_resnet50_on_real_ranks(ranks) -> None:
    for outcome in ranks.run(_on_rank, "resnet50", "replica", "sgd", False, 6, timeout=280):
        check(outcome, ranks.size, "resnet50", "replica", 6)
