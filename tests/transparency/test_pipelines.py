"""Steps in stages equal the same steps without, whatever the schedule, and each device does its stage's work only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import whaleish as wh
from tests.products import pairwise
from tests.transparency.pipes import BLOCKS, MICRO_BATCHES, NETS, OPTIMIZERS, Outcome, Pipe, compare

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
    if devices > 1:
        for device, share in outcome.held.items():
            assert share <= blocks / BLOCKS + 0.2, f"{device} holds {share:.1%} of the variables"
        assert len(outcome.held) >= groups


@pytest.mark.parametrize(
    *pairwise(
        net=list(NETS),
        world_of=[1, 2, 3, 4],
        micro_batches=list(MICRO_BATCHES),
        schedule=SCHEDULES,
        optimizer=list(OPTIMIZERS),
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


@pytest.mark.parametrize("world_of", [4], indirect=True)
@pytest.mark.parametrize("net", NETS)
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
    check(compare(net, pipe, "clipped", 8), pipe, world_of)
