"""Steps in stages equal the same steps without, whatever the schedule, and each device does its stage's work only."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import whaleish as wh
from tests.products import either, pairwise
from tests.transparency.pipes import BLOCKS, MICRO_BATCHES, NETS, OPTIMIZERS, NoPipe, Outcome, Pipe, compare, make
from tests.transparency.precision import computing_in

SCHEDULES = ["gpipe", "1f1b", "interleaved(2)", "zb-h1"]


def check(outcome: Outcome, pipe: Pipe, devices: int) -> None:
    assert outcome.losses <= 1e-9
    assert outcome.weights <= 1e-9
    # A device has the blocks of its stages, evenly divided inside them; heads and ties make the last ones larger.
    groups = len(pipe.devices) if pipe.devices else (pipe.stages // 2 if "(2)" in pipe.schedule else pipe.stages)
    blocks = -(-BLOCKS // groups)
    inside = devices // groups
    for device, share in outcome.work.items():
        assert share <= (blocks / BLOCKS + 0.2) / inside, f"{device} did {share:.1%} of the work"
    for device, share in outcome.held.items() if devices > 1 else ():
        assert share <= blocks / BLOCKS + 0.2, f"{device} holds {share:.1%} of the variables"


@pytest.mark.parametrize(
    *pairwise(
        whole=("world_of", "micro_batches", "schedule"),
        net=list(NETS),
        world_of=[1, 2, 3, 4],
        micro_batches=either([1, 4, 7], MICRO_BATCHES),
        schedule=SCHEDULES,
        optimizer=either(["clipped", "scaled", "accumulating"], OPTIMIZERS),
        batch=[8, 10],
    ),
    indirect=["world_of"],
)
def test_in_one_process(net: str, world_of: int, micro_batches: int, schedule: str, optimizer: str, batch: int) -> None:
    stages = {1: 2, 2: 4}.get(world_of) if "(2)" in schedule else world_of
    if stages is None:
        schedule, stages = "1f1b", world_of
    pipe = Pipe(stages, micro_batches, schedule)
    check(compare(net, pipe, optimizer, batch), pipe, world_of)


@pytest.mark.parametrize("world_of", [3], indirect=True)
@pytest.mark.parametrize("net", NETS)
def test_stages_that_take_turns(world_of: int, net: str) -> None:
    pipe = Pipe(3, None)
    check(compare(net, pipe, "adamw", 10), pipe, world_of)


@pytest.mark.parametrize(
    *pairwise(
        whole=("world_of", "schedule"),
        net=either(["woven", "functional"], NETS),
        world_of=[2, 3],
        schedule=["1f1b", "zb-h1"],
        optimizer=either(["clipped", "scaled"], OPTIMIZERS),
    ),
    indirect=["world_of"],
)
def test_recomputation(net: str, world_of: int, schedule: str, optimizer: str) -> None:
    """Dropout too is the same again, and the forward's products are done twice."""
    pipe, kept = Pipe(world_of, 4, schedule, recompute=True), Pipe(world_of, 4, schedule)
    outcome, without = compare(net, pipe, optimizer, 10), compare(net, kept, optimizer, 10)
    assert max(outcome.losses, outcome.weights) <= 1e-9
    assert sum(outcome.work.values()) >= sum(without.work.values()) * 1.2


@pytest.mark.parametrize("world_of", [4], indirect=True)
@pytest.mark.parametrize("net", either(["woven", "tied"], NETS))
@pytest.mark.parametrize(
    ("outer", "inner"),
    [(lambda: wh.replica(2), None), (None, wh.split), (None, wh.replica)],
    ids=["replica x stages", "stages x split", "stages x replica"],
)
def test_in_three_dimensions(
    world_of: int, net: str, outer: Callable[[], Any] | None, inner: Callable[[], Any] | None
) -> None:
    given = {"outer": outer, "inner": inner}
    pipe = Pipe(2, 4, **{name: scope for name, scope in given.items() if scope is not None})
    check(compare(net, pipe, "scaled" if net == "plain" else "clipped", 8), pipe, world_of)


@pytest.mark.parametrize("world_of", [3], indirect=True)
@pytest.mark.parametrize(
    ("net", "devices", "inner"),
    [
        ("woven", ((0,), (1, 2)), contextlib.nullcontext),
        ("tied", ((0, 1), (2,)), wh.split),
        ("plain", ((0, 1), (2,)), contextlib.nullcontext),
    ],
    ids=["1 and 2", "2 and 1, split", "2 and 1"],
)
def test_stages_of_unequal_size(world_of: int, net: str, devices: Any, inner: Callable[[], Any]) -> None:
    pipe = Pipe(2, 4, devices=devices, inner=inner)
    outcome = compare(net, pipe, "adamw", 10)
    assert max(outcome.losses, outcome.weights) <= 1e-9
    for stage in devices:
        # 10 rows in micro-batches of 3 and 2 are 6 and 4 for two devices.
        shares = [outcome.work[f"/device:CPU:{device}"] for device in stage]
        assert max(shares) <= 0.7 * (1 if len(stage) == 1 else 0.65)


@pytest.mark.ranks
@pytest.mark.parametrize(
    *pairwise(
        whole=("ranks", "micro_batches", "schedule"),
        net=["woven", "tied"],
        ranks=either([2, 4], [2, 3, 4]),
        micro_batches=either([None, 4, 7], [None, *MICRO_BATCHES]),
        schedule=either(["1f1b", "interleaved(2)", "zb-h1"], SCHEDULES),
        optimizer=either(["clipped", "adamw"], OPTIMIZERS),
        batch=[8, 10],
    ),
    indirect=["ranks"],
)
def test_on_real_ranks(
    ranks: Any, net: str, micro_batches: int | None, schedule: str, optimizer: str, batch: int
) -> None:
    stages = {2: 4}.get(ranks.size) if "(2)" in schedule and micro_batches else ranks.size
    if stages is None:
        schedule, stages = "1f1b", ranks.size
    pipe = Pipe(stages, micro_batches, schedule)
    for outcome in ranks.run(_on_rank, net, pipe, optimizer, batch, timeout=150):
        check(outcome, pipe if micro_batches else Pipe(stages), ranks.size)


@pytest.mark.ranks
@pytest.mark.parametrize("ranks", [4], indirect=True)
@pytest.mark.parametrize("inside", [False, True], ids=["replica x stages", "stages x split"])
def test_in_three_dimensions_on_real_ranks(ranks: Any, inside: bool) -> None:
    for outcome in ranks.run(_on_four_ranks, inside, timeout=150):
        check(outcome, Pipe(2), 4)


@pytest.mark.ranks
@pytest.mark.parametrize("replicas", [1, 2])
def test_batches_that_arrive_in_parts(ranks: Any, replicas: int) -> None:
    """Each rank has some rows of the batch; stages see all of them. Of 7 rows in 4 micro-batches none is even."""
    for found, expected in ranks.run(_batches_in_parts, replicas, timeout=120):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-9)


def _batches_in_parts(replicas: int) -> tuple[list[float], list[float]]:
    """Losses of steps on rows that `distribute_dataset` deals out, and that each rank has itself."""
    wh.init()
    scope = Pipe(2, 4) if replicas == 1 else Pipe(1, 4, outer=lambda: wh.replica(2))
    with computing_in("float64"):
        alone, _, plain_step = make("woven", NoPipe(scope.stages), "clipped")
        plain = tf.function(plain_step)
        spread = [make("woven", scope, "clipped")[2] for _ in range(2)]
        dealt, local = wh.function(spread[0]), wh.function(spread[1], inputs="local")
        rng = np.random.default_rng(5)
        x, y = alone.draw(rng, 21)
        batches = tf.data.Dataset.from_tensor_slices((x, y)).batch(7)
        found, expected = [], []
        for part, (own_x, own_y) in zip(wh.distribute_dataset(batches), batches, strict=True):
            rows = slice(0, 4) if wh.rank() == 0 else slice(4, 7)
            found += [float(dealt(*part)), float(local(own_x[rows], own_y[rows]))]
            expected += [float(plain(own_x, own_y))] * 2
    return found, expected


def _on_rank(net: str, pipe: Pipe, optimizer: str, batch: int) -> Outcome:
    wh.init()
    return compare(net, pipe, optimizer, batch)


def _on_four_ranks(inside: bool) -> Outcome:
    wh.init()
    pipe = Pipe(2, 4, inner=wh.split) if inside else Pipe(2, 4, outer=lambda: wh.replica(2))
    return compare("woven", pipe, "clipped", 10)
