"""Keras's callbacks beside a distributed model on two ranks: as on one device, and files are written once."""

from __future__ import annotations

import contextlib
import csv
import os

import numpy as np
import pytest

EPOCHS = 6


def _fit(folder, distributed, interrupted):
    """Trains with every callback of Keras that steers or writes; what became of it."""
    import keras

    import whaleish
    from tests.keras.registry import REGISTRY

    if distributed:
        whaleish.init()
    keras.utils.set_random_seed(1)
    model, data = REGISTRY["mlp"]()
    if distributed:
        whaleish.keras.distribute(model)
    epochs = []

    def seen(epoch, logs):
        epochs.append(epoch)
        if interrupted and epoch == 2:
            raise KeyboardInterrupt

    of = keras.callbacks
    callbacks = [
        of.CSVLogger(f"{folder}/log.csv"),
        of.BackupAndRestore(f"{folder}/backup"),
        of.ReduceLROnPlateau("loss", patience=1, min_delta=10.0, factor=0.5),
        of.EarlyStopping("loss", patience=3, min_delta=10.0, restore_best_weights=True),
        of.LearningRateScheduler(lambda epoch, rate: rate * 0.9),
        of.TerminateOnNaN(),
        of.LambdaCallback(on_epoch_end=seen),
        of.ModelCheckpoint(f"{folder}/best.weights.h5", save_best_only=True, save_weights_only=True, monitor="loss"),
    ]
    losses = []
    with contextlib.suppress(KeyboardInterrupt):
        losses = model.fit(**data, batch_size=11, epochs=EPOCHS, verbose=0, callbacks=callbacks).history["loss"]
    return epochs, losses, float(model.optimizer.learning_rate.numpy()), [w.numpy() for w in model.weights]


@pytest.mark.ranks
@pytest.mark.parametrize("ranks", [2], indirect=True)
def test_as_on_one_device_and_written_once(ranks, tmp_path) -> None:
    (tmp_path / "plain").mkdir()
    (tmp_path / "ranks").mkdir()
    epochs, losses, rate, weights = _fit(tmp_path / "plain", False, False)
    assert len(epochs) == 4, "patience ends it early"
    for found in ranks.run(_fit, str(tmp_path / "ranks"), True, False, timeout=200):
        assert found[0] == epochs
        np.testing.assert_allclose(found[1], losses, rtol=1e-5)
        assert found[2] == pytest.approx(rate)
        for ours, theirs in zip(found[3], weights, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)
    for folder in ("plain", "ranks"):
        assert sorted(os.listdir(tmp_path / folder)) == ["best.weights.h5", "log.csv"]
        with open(tmp_path / folder / "log.csv") as file:
            assert [row["epoch"] for row in csv.DictReader(file)] == ["0", "1", "2", "3"]


@pytest.mark.ranks
@pytest.mark.parametrize("ranks", [2], indirect=True)
def test_goes_on_after_an_interruption(ranks, tmp_path) -> None:
    whole, *_ = ranks.run(_fit, str(tmp_path), True, True, timeout=120)
    assert whole[0] == [0, 1, 2]
    first, second = ranks.run(_fit, str(tmp_path), True, False, timeout=120)
    assert first[0] == second[0]
    assert first[0][0] in (2, 3), "the epochs before are not repeated"
    np.testing.assert_array_equal(first[1], second[1])
