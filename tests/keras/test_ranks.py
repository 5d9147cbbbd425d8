"""Distributed models on real ranks: all train as one."""

from __future__ import annotations

import numpy as np
import pytest

from tests.keras.test_distribute import check, train

NAMES = ["mlp", "cnn", "own_step", "accumulating"]


def _train(names):
    import whaleish

    whaleish.init()
    return [train(name, True) for name in names]


@pytest.mark.ranks
@pytest.mark.parametrize("ranks", [2], indirect=True)
def test_as_on_one_device(ranks) -> None:
    """`fit` shuffles here: all ranks as one device would with the same seed."""
    runs = ranks.run(_train, NAMES, timeout=200)
    for number, name in enumerate(NAMES):
        plain = train(name, False)
        for run in runs:
            check(name, plain, run[number], 2)
        for ours, theirs in zip(runs[0][number].weights, runs[1][number].weights, strict=True):
            np.testing.assert_array_equal(ours, theirs)


def _shuffled(seeds):
    import keras

    import whaleish
    from tests.keras.registry import REGISTRY

    whaleish.init()
    printed = []
    keras.utils.set_random_seed(seeds[whaleish.rank()])
    model, data = REGISTRY["mlp"]()
    whaleish.keras.distribute(model)

    class Shown(keras.callbacks.ProgbarLogger):
        def set_params(self, params):
            super().set_params(params)
            printed.append(params["verbose"])

    losses = model.fit(**data, batch_size=5, epochs=2, verbose=2, callbacks=[Shown()]).history["loss"]
    return losses, printed, float(model.evaluate(data["x"], data["y"], verbose=0)[0])


@pytest.mark.ranks
@pytest.mark.parametrize("ranks", [2], indirect=True)
def test_ranks_of_different_seeds_shuffle_alike_and_one_of_them_shows_it(ranks) -> None:
    (losses, shown, evaluated), (other, hidden, also) = ranks.run(_shuffled, [3, 4], timeout=120)
    assert (losses, evaluated) == (other, also)
    assert (shown, hidden) == ([2], [0])


def _late():
    import time

    import whaleish
    from tests.keras.registry import REGISTRY

    whaleish.init()
    model, data = REGISTRY["mlp"]()
    whaleish.keras.distribute(model)
    said = ""
    if whaleish.rank() == 0:
        try:
            model.fit(**data, verbose=0)
        except RuntimeError as error:
            said = str(error)
    else:
        time.sleep(17)
    return said, model.fit(**data, verbose=0).history["loss"]


@pytest.mark.ranks
@pytest.mark.parametrize("ranks", [2], indirect=True)
def test_a_loop_that_one_rank_alone_runs_ends_and_may_begin_again(ranks) -> None:
    (said, losses), (_, other) = ranks.run(_late, timeout=90)
    assert "belong to all ranks together" in said
    assert losses == other


def _saving(folder):
    import os

    import keras

    import whaleish
    from tests.keras.registry import REGISTRY

    whaleish.init()
    keras.utils.set_random_seed(1)
    model, data = REGISTRY["mlp"]()
    whaleish.keras.distribute(model, rules={"dense": whaleish.split()})
    path = f"{folder}/of epoch {{epoch}}.keras"
    model.fit(**data, batch_size=11, epochs=2, verbose=0, callbacks=[keras.callbacks.ModelCheckpoint(path)])
    there = sorted(os.listdir(folder))
    try:
        model.save(f"{folder}/no folder/model.keras")
    except (RuntimeError, OSError) as error:
        failure = f"{type(error).__name__} {error}"
    return there, failure, model.predict(data["x"], verbose=0)


@pytest.mark.ranks
@pytest.mark.parametrize("ranks", [2], indirect=True)
def test_saved_once_by_all(ranks, tmp_path) -> None:
    import keras

    from tests.keras.registry import REGISTRY

    (there, failure, predicted), (also, told, _) = ranks.run(_saving, str(tmp_path), timeout=120)
    assert there == also == ["of epoch 1.keras", "of epoch 2.keras"]
    assert "no folder" in failure
    assert "rank 0 could not write" in told
    plain = keras.models.load_model(tmp_path / "of epoch 2.keras")
    np.testing.assert_allclose(plain.predict(REGISTRY["mlp"]()[1]["x"], verbose=0), predicted, rtol=1e-4, atol=1e-5)
