"""The contestants of the pipeline benchmark do the same work: equal losses on a small encoder."""

from typing import Any

import pytest


def losses(steps: int) -> dict[str, list[float]]:
    from tools.bench import pipeline
    from tools.bench.encoder import SMALL

    made = {name: getattr(pipeline, name)(SMALL) for name in ("tensorflow_alone", "horovod", "whaleish")}
    return {name: [contestant.step() for _ in range(steps)] for name, contestant in made.items()}


@pytest.mark.ranks
@pytest.mark.parametrize("ranks", [4], indirect=True)
def test_losses_are_equal(ranks: Any) -> None:
    results = ranks.run(losses, 3, timeout=150)
    assert results[0]["tensorflow_alone"] == pytest.approx(results[0]["whaleish"], rel=1e-5)
    for found in results:
        assert found["whaleish"] == pytest.approx(found["horovod"], rel=1e-5)
        assert found["whaleish"][-1] < found["whaleish"][0]
