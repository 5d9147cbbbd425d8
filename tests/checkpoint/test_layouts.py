"""A checkpoint of any layout goes on in any other, on any number of devices, and in TensorFlow alone."""

from __future__ import annotations

import os

import keras
import numpy as np
import pytest
import tensorflow as tf

import whaleish as wh
from tests.checkpoint.training import LAYOUTS, devices, in_parts, make
from tests.products import either

SPREAD = ["replica", "split", "2x2", "stated", "stages", "pipeline"]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """For each layout on 4 devices, saved after two steps: the checkpoint, the values, and the next three losses."""
    made = {}

    def of(layout: str, count: int = 4):
        if (layout, count) not in made:
            with devices(count):
                training = make(layout)
                training.train(0, 2)
                saving = wh.checkpoint.save(tmp_path_factory.mktemp("saved"), training.objects)
                values = training.values()
                assert in_parts(training) > 0 or layout in ("plain", "replica") or count == 1
                made[layout, count] = saving.path, values, training.train(2)
        return made[layout, count]

    return of


def goes_on(path: str, values, losses, layout: str, *, at: int = 2, build: bool = True, trained: bool = False) -> None:
    """In a training of this layout, which was other values before."""
    training = make(layout, seed=1, build=build)
    if trained:  # so its variables lie in its layout when they are restored
        training.train(7, 1)
    restored = wh.checkpoint.restore(path, training.objects)
    assert bool(restored.waiting) == (not build)
    if build:
        for found, value, variable in zip(training.values(), values, training.variables, strict=True):
            np.testing.assert_array_equal(found, value, err_msg=variable.path)
    np.testing.assert_allclose(training.train(at), losses, rtol=1e-10)
    restored.assert_consumed()


def journeys():
    """From where, to where, and whether trained there before: each target once, or everything."""
    targets = [(layout, count) for layout, counts in LAYOUTS.items() for count in counts]
    few = [(SPREAD[index % 6], *target, index % 4 < 2) for index, target in enumerate(targets)]
    return either(few, [(before, *target, trained) for before in SPREAD for target in targets for trained in (0, 1)])


@pytest.mark.parametrize(("before", "layout", "count", "trained"), journeys())
def test_from_any_layout_to_any(saved, before, layout, count, trained) -> None:
    path, values, losses = saved(before)
    with devices(count):
        goes_on(path, values, losses, layout, trained=trained)


@pytest.mark.parametrize("before", SPREAD)
def test_tensorflow_alone_reads_it(saved, before) -> None:
    path, values, losses = saved(before)
    with devices(1):
        plain = make("plain", seed=1, compiled=False)
        tf.train.Checkpoint(**plain.objects).restore(path).assert_consumed()
        for found, value in zip(plain.values(), values, strict=True):
            np.testing.assert_array_equal(found, value)
        np.testing.assert_allclose(plain.train(2), losses, rtol=1e-10)
    assert tf.train.latest_checkpoint(os.path.dirname(path)) == path


@pytest.mark.parametrize(
    ("layout", "count", "trained"), [("split", 4, False), ("2x2", 4, True), ("stages", 2, True), ("stated", 3, False)]
)
def test_reads_what_tensorflow_wrote(tmp_path, layout, count, trained) -> None:
    with devices(1):
        plain = make("plain", compiled=False)
        plain.train(0, 2)
        path = tf.train.Checkpoint(**plain.objects).save(str(tmp_path / "ckpt"))
        values, losses = plain.values(), plain.train(2)
    with devices(count):
        goes_on(path, values, losses, layout, trained=trained)


def test_saved_at_split_2_goes_on_anywhere_and_back(saved, tmp_path) -> None:
    """Case G2."""
    path, values, losses = saved("split", 2)
    for layout, count in [("split", 1), ("split", 4), ("stages", 2), ("replica", 2)]:
        with devices(count):
            goes_on(path, values, losses, layout)
            # And back: what is saved there goes on at split 2.
            training = make(layout, seed=2)
            wh.checkpoint.restore(path, training.objects)
            training.train(2, 1)
            back = wh.checkpoint.save(tmp_path / f"{layout}{count}", training.objects)
            later, then = training.values(), training.train(3)
        with devices(2):
            goes_on(back.path, later, then, "split", at=3, trained=True)
    with devices(1):
        plain = make("plain", seed=3, compiled=False)
        tf.train.Checkpoint(**plain.objects).restore(path).assert_consumed()
        np.testing.assert_allclose(plain.train(2), losses, rtol=1e-10)


@pytest.mark.parametrize("layout", ["split", "stages"])
def test_what_is_not_made_yet_gets_its_value_when_it_is(saved, layout) -> None:
    path, values, losses = saved("2x2")
    with devices(2):
        goes_on(path, values, losses, layout, build=False)


def test_a_checkpoint_has_each_tensor_in_slices_of_the_parts(saved) -> None:
    """The file's own words: a variable in parts is not gathered to be written."""
    path, _, _ = saved("split")
    reader = tf.train.load_checkpoint(path)
    key = next(key for key, shape in reader.get_variable_to_shape_map().items() if shape == [10, 14])
    # A slice that was stored is read without the others: damage to one shows in that one only.
    with open(f"{path}.data-00000-of-00001", "rb") as file:
        data = bytearray(file.read())
    found = reader.get_tensor(key)
    place = data.find(np.ascontiguousarray(found[:, 4:8]).tobytes())
    assert place >= 0, "no columns of one device are in the file as one slice"


def test_names_left_out_and_kept(saved) -> None:
    path, values, _ = saved("split")
    with devices(4):
        training = make("split", seed=1)
        assert wh.checkpoint.restore(path, {"model": training.model}).left_out == ("optimizer",)
        for found, value in zip(training.model.variables, values, strict=False):
            np.testing.assert_array_equal(found.numpy(), value)


def test_all_kinds_of_objects(tmp_path) -> None:
    class Module(tf.Module):
        def __init__(self):
            super().__init__()
            self.weights = [tf.Variable(tf.range(3.0)), tf.Variable(["a", "b"])]
            self.table = {"x": tf.Variable(2)}

    class Counting(tf.train.experimental.PythonState):
        count = 5

        def serialize(self):
            return str(self.count)

        def deserialize(self, value):
            self.count = int(value)

    objects = {
        "module": Module(),
        "inner": tf.train.Checkpoint(v=tf.Variable(3.0), list=[tf.Variable(4)]),
        "keras": keras.Variable(np.ones(3)),
        "rng": tf.random.Generator.from_seed(3),
        "state": Counting(),
    }
    metric = keras.metrics.Mean()  # which TensorFlow does not track, but its variables
    metric.update_state([1.0, 2.0])
    objects["metric"] = metric.variables
    path = wh.checkpoint.save(tmp_path, objects).path
    drawn = objects["rng"].uniform([3])
    objects["module"].weights[0].assign([0, 0, 0])
    objects["module"].weights[1].assign(["c", "d"])
    objects["inner"].list[0].assign(0)
    objects["keras"].assign(np.zeros(3))
    objects["state"].count = 0
    metric.reset_state()
    wh.checkpoint.restore(path, objects).assert_consumed()
    assert objects["module"].weights[0].numpy().tolist() == [0, 1, 2]
    assert objects["module"].weights[1].numpy().tolist() == [b"a", b"b"]
    assert (int(objects["inner"].list[0]), objects["state"].count) == (4, 5)
    np.testing.assert_array_equal(objects["keras"].numpy(), np.ones(3))
    np.testing.assert_array_equal(objects["rng"].uniform([3]), drawn)
    assert float(metric.result()) == 1.5
    tf.train.Checkpoint(**objects).restore(path).assert_consumed()


def test_older_checkpoints_go_when_the_new_one_is_recorded(tmp_path) -> None:
    v = tf.Variable(0)
    for number in range(1, 6):
        v.assign(number)
        assert wh.checkpoint.save(tmp_path, {"v": v}, keep=2).path == str(tmp_path / f"ckpt-{number}")
    assert sorted(os.listdir(tmp_path)) == [
        "checkpoint",
        *(f"ckpt-{number}.{kind}" for number in (4, 5) for kind in ("data-00000-of-00001", "index")),
    ]
    for number in (4, 5):
        wh.checkpoint.restore(tmp_path / f"ckpt-{number}", {"v": v})
        assert int(v) == number
    wh.checkpoint.save(tmp_path, {"v": v})
    assert len(os.listdir(tmp_path)) == 3
    # TensorFlow's own count goes on from there.
    checkpoint = tf.train.Checkpoint(v=v)
    checkpoint.restore(tf.train.latest_checkpoint(tmp_path))
    assert checkpoint.save(str(tmp_path / "ckpt")) == str(tmp_path / "ckpt-7")
    wh.checkpoint.restore(tmp_path, checkpoint)
    assert wh.checkpoint.save(tmp_path, checkpoint).path == str(tmp_path / "ckpt-8")
