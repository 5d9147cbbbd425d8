"""Steps with loops and conditions equal one device, and what is in their bodies is divided."""

from __future__ import annotations

import itertools

import pytest

from tests.products import either
from tests.transparency.loops import CASES, FEATURES, LOOPS, OPTIMIZERS, RECURRENT, UNITS, Outcome, compare, dtype_of

TOLERANCE = {"float64": 1e-9, "float32": 1e-5}


def check(outcome: Outcome, name: str, scope: str, size: int, batch: int, dtype: str = "") -> None:
    tolerance = TOLERANCE[dtype or dtype_of(name)]
    assert outcome.results <= tolerance
    assert outcome.weights <= tolerance
    assert "0 ops run whole on every device for want of a rule" in outcome.text
    largest = -(-batch // size)
    for part, share in enumerate(outcome.work):
        if name == "case":  # so little work that what is done once counts
            assert share < 0.7
            continue
        assert share <= largest / batch + 0.08, f"part {part} did {share:.1%} of the work"
    if scope == "split":
        assert outcome.sharded or name == "case"
        return
    if name in ("lstm", "gru", "simple"):
        carried = (batch, UNITS)
    elif name in ("while", "scan", "nested"):
        carried = (batch, FEATURES)
    else:
        return
    # The state stays split along the batch while it goes round.
    assert carried not in outcome.arguments
    assert {(largest, carried[1]), (batch // size, carried[1])} & outcome.arguments


@pytest.mark.parametrize("world_of", [2, 3], indirect=True)
@pytest.mark.parametrize("scope", ["replica", "split"])
@pytest.mark.parametrize("name", CASES)
def test_in_one_process(name: str, scope: str, world_of: int) -> None:
    check(compare(name, scope, 10), name, scope, world_of, 10)


@pytest.mark.parametrize("world_of", [2], indirect=True)
@pytest.mark.parametrize("name", ["lstm", "nested", "growing-scale"])
def test_in_float32(name: str, world_of: int) -> None:
    check(compare(name, "replica", 12, "float32"), name, "replica", world_of, 12, "float32")


@pytest.mark.parametrize("world_of", [4], indirect=True)
@pytest.mark.parametrize("name", ["lstm", "gru", "nested", "ema"])
def test_parts_without_rows(name: str, world_of: int) -> None:
    outcome = compare(name, "replica", 2)
    assert max(outcome.results, outcome.weights) <= TOLERANCE["float64"]
    assert {(0, UNITS), (0, FEATURES)} & outcome.arguments or name == "ema"


@pytest.mark.parametrize("world_of", [2], indirect=True)
def test_all_parts_skip_the_steps_that_overflow(world_of: int) -> None:
    changes = compare("dynamic-scale", "split", 10).changes
    assert not changes[0]
    assert changes[-1]


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("names", "scope"),
    either(
        [(["lstm"], "replica"), (list(LOOPS), "replica"), (list(OPTIMIZERS), "split")],
        itertools.product([list(RECURRENT), list(LOOPS), list(OPTIMIZERS)], ["replica", "split"]),
    ),
    ids=lambda value: value if isinstance(value, str) else value[0],
)
def test_on_real_ranks(ranks, names: list[str], scope: str) -> None:
    for outcomes in ranks.run(_on_rank, names, scope, timeout=240):
        for name, outcome in zip(names, outcomes, strict=True):
            check(outcome, name, scope, ranks.size, 9)


def _on_rank(names: list[str], scope: str) -> list[Outcome]:
    import whaleish
    from tests.transparency.loops import compare

    whaleish.init()
    return [compare(name, scope, 9) for name in names]


@pytest.mark.ranks
def test_collectives_in_bodies_cannot_be_taken_for_one_another(ranks) -> None:
    """Nor run in two iterations at once: Horovod would find a name in flight twice."""
    for in_bodies, names, numbers, parallel in ranks.run(_collectives, "normalised"):
        assert in_bodies
        assert len(set(names)) == len(names)
        assert len(set(numbers)) == len(numbers)
        assert set(parallel) == {1}


def _collectives(name: str):
    import tensorflow as tf

    import whaleish
    from tests.transparency.loops import CASES, FEATURES, TIME

    whaleish.init()
    step, _ = CASES[name](whaleish.replica)
    program = whaleish.function(step).program_for(tf.zeros([10, TIME, FEATURES]))
    bodies = [node for body in program.emitted.bodies for node in body.node_def]
    nodes = [*bodies, *program.emitted.writer.function_def.node_def]
    sent = [node for node in nodes if node.op.startswith("Horovod")]
    return (
        sum(node.op.startswith("Horovod") for node in bodies),
        [node.name for node in sent],
        [node.attr["_whaleish_number"].i for node in sent],
        [node.attr["parallel_iterations"].i for node in nodes if node.op == "While"],
    )
