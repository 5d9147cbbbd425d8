"""Whether devices keep exactly to their schedule."""

from typing import Any

import numpy as np
import pytest

import whaleish as wh
from tests.transparency.pipes import Pipe, make
from tests.transparency.precision import computing_in


def queues(schedule: str) -> Any:
    with computing_in("float64"):
        net, _, step = make("plain", Pipe(3, 4, schedule), "sgd")
        return wh.function(step).program_for(*net.draw(np.random.default_rng(0), 8)).actors.graph.queues


@pytest.mark.parametrize("world_of", [3], indirect=True)
@pytest.mark.parametrize(("schedule", "kept"), [("1f1b", False), ("zb-h1", True)])
def test_a_backward_in_halves_is_kept_in_order(world_of: int, schedule: str, kept: bool) -> None:
    assert {queue.ordered for queue in queues(schedule)} == {kept}
