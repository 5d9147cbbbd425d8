"""Checkpoints that are not there, not whole, of something else or do not fit: an error, and nothing has changed."""

import os
import random
import resource
import shutil
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

import whaleish as wh
from whaleish.checkpoint import CheckpointError
from whaleish.mesh import Axis, Mesh
from whaleish.sbp import S
from whaleish.state import lay_out

MESH = Mesh((Axis("a", 4),))
VALUE = np.arange(24.0).reshape(6, 4)


def make():
    v, w = tf.Variable(VALUE, name="v"), tf.Variable(tf.ones([3]), name="w")
    lay_out(v, (S(0),), MESH)
    return {"v": v, "w": w}


@pytest.fixture
def saved(tmp_path):
    objects = make()
    path = wh.checkpoint.save(tmp_path / "c", objects).path
    for variable in objects.values():
        variable.assign(variable * 0)
    return path, objects


def unchanged(objects) -> None:
    assert not any(np.asarray(variable).any() for variable in objects.values())


def test_missing(saved, tmp_path):
    path, objects = saved
    folder = os.path.dirname(path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "checkpoint").write_bytes(bytes(range(256)))
    (tmp_path / "x.h5").write_text("of another kind")
    cases = {
        tmp_path / "empty": "no checkpoint is recorded in .*which has nothing",
        tmp_path / "other": "no checkpoint is recorded in .*its file 'checkpoint' is not TensorFlow's",
        f"{folder}/ckpt-2": r"there is no file ckpt-2\.index in .*which has checkpoint, ckpt-1",
        tmp_path / "nowhere" / "ckpt": "is not a folder that this process sees",
        tmp_path / "x.h5": r"there is no file x\.h5\.index.*is a file of another kind",
        "gs://bucket/x": "give a folder of a file system",
        "": "give a folder",
        3: "give the path of a folder",
    }
    for given, said in cases.items():
        with pytest.raises(CheckpointError, match=said):
            wh.checkpoint.restore(given, objects)
    unchanged(objects)
    os.remove(f"{path}.index")
    with pytest.raises(CheckpointError, match=r"ckpt-1 is recorded as the latest, and its files are not there"):
        wh.checkpoint.restore(folder, objects)


def test_damaged_everywhere(saved, tmp_path):
    """Any bit of any file flipped, and any file cut anywhere: an error that names the file, or all values are right."""
    path, objects = saved
    rng, data, index = random.Random(0), f"{path}.data-00000-of-00001", f"{path}.index"
    whole = {file: Path(file).read_bytes() for file in (data, index)}
    noticed = right = 0
    for _ in range(120):
        file = rng.choice([data, index])
        content = bytearray(whole[file])
        if rng.random() < 0.3:
            content = content[: rng.randrange(len(content))]
        else:
            content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        Path(file).write_bytes(content)
        try:
            wh.checkpoint.restore(path, objects)
        except CheckpointError as error:
            noticed += path in str(error)
            unchanged(objects)
        else:
            right += 1
            np.testing.assert_array_equal(objects["v"].numpy(), VALUE)
            np.testing.assert_array_equal(objects["w"].numpy(), np.ones(3))
            for variable in objects.values():
                variable.assign(variable * 0)
        Path(file).write_bytes(whole[file])
    assert noticed + right == 120
    assert noticed > 60
    Path(data).write_bytes(whole[data][:8])
    with pytest.raises(CheckpointError) as cut:
        wh.checkpoint.restore(path, objects)
    for said in ("ckpt-1 is damaged", "v/.ATTRIBUTES", "ckpt-1.data-00000-of-00001 (", "prefix of another checkpoint"):
        assert said in str(cut.value)
    os.remove(data)
    with pytest.raises(CheckpointError, match=r"ckpt-1 is damaged: .*No such file"):
        wh.checkpoint.restore(path, objects)
    unchanged(objects)


def test_what_no_checkpoint_is_made_of(tmp_path):
    variable = tf.Variable([1.5, 2.5])
    for given in (variable, [variable], {1: variable}, {"a": 3}):
        with pytest.raises(CheckpointError, match="give a dict of names and objects") as refused:
            wh.checkpoint.save(tmp_path, given)
        assert "1.5" not in str(refused.value)


def test_one_without_objects(tmp_path):
    tf.raw_ops.SaveV2(
        prefix=str(tmp_path / "named"), tensor_names=["v"], shape_and_slices=[""], tensors=[tf.constant(VALUE)]
    )
    with pytest.raises(CheckpointError, match=r"named is a checkpoint of names and values without objects"):
        wh.checkpoint.restore(tmp_path / "named", make())


def mlp(units, more=0):
    keras.utils.set_random_seed(0)
    hidden = [keras.layers.Dense(units, name=f"hidden{number}") for number in range(1 + more)]
    return keras.Sequential([keras.Input((4,)), *hidden, keras.layers.Dense(2, name="out")], name="mlp")


def test_another_model_is_told_apart_in_full(tmp_path):
    path = wh.checkpoint.save(tmp_path, {"model": mlp(8, more=1)}).path
    narrow = mlp(5)
    before = narrow.get_weights()
    with pytest.raises(CheckpointError) as raised:
        wh.checkpoint.restore(path, {"model": narrow})
    message = str(raised.value)
    assert message.startswith(f"nothing was restored from '{path}': {path} is of other objects.")
    assert "different (4):" in message
    assert "kernel (mlp/hidden0/kernel): shape [4, 8], here (4, 5)" in message
    assert "in the checkpoint and not here (2):" in message
    assert "partial" not in message
    deep = mlp(8, more=3)
    with pytest.raises(CheckpointError) as raised:
        wh.checkpoint.restore(path, {"model": deep, "other": tf.Variable(1)})
    assert "not in the checkpoint (" in str(raised.value)
    assert "  other (" in str(raised.value)
    with pytest.raises(CheckpointError, match=r"(?s)different \(1\):\n  v .*type float32, here int32"):
        wh.checkpoint.restore(
            wh.checkpoint.save(tmp_path, {"v": tf.Variable(1.0)}).path, {"v": tf.Variable(1)}, partial=True
        )
    for a, b in zip(before, narrow.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_only_what_fits_if_asked_for(tmp_path):
    old = {"a": tf.Variable(1.0), "b": tf.Variable(2.0)}
    wh.checkpoint.save(tmp_path, old)
    new = {"b": tf.Variable(0.0), "c": tf.Variable(7.0)}
    with pytest.raises(CheckpointError, match=r"(?s)not in the checkpoint \(1\):\n  c .*say partial=True"):
        wh.checkpoint.restore(tmp_path, new)
    assert wh.checkpoint.restore(tmp_path, new, partial=True).left_out == ("a",)
    assert (float(new["b"]), float(new["c"])) == (2.0, 7.0)


def test_what_cannot_be_saved(tmp_path):
    v = tf.Variable(1.0)
    wh.checkpoint.save(tmp_path, {"v": v})
    for objects in ({"v": 3}, 3, None, {"v": object()}, [v, 4]):
        with pytest.raises(CheckpointError, match="give a dict of names and objects"):
            wh.checkpoint.save(tmp_path, objects)
    for keep in (0, -1, None, 1.5):
        with pytest.raises(CheckpointError, match="keep="):
            wh.checkpoint.save(tmp_path, {"v": v}, keep=keep)
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match=r"no checkpoint was saved in .*Give a folder in which files can be made"):
        wh.checkpoint.save(tmp_path / "file", {"v": v})
    assert wh.checkpoint.save(tmp_path, {"v": v}).path == str(tmp_path / "ckpt-2")


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_full_disk(saved, asynchronous):
    """No file may grow beyond some bytes; whichever that stops, the checkpoint before stays and is found."""
    path, objects = saved
    folder, limits = os.path.dirname(path), resource.getrlimit(resource.RLIMIT_FSIZE)
    for allowed in (0, 10, 60, 150, 400):
        resource.setrlimit(resource.RLIMIT_FSIZE, (allowed, limits[1]))
        try:
            with pytest.raises(CheckpointError, match="File too large"):
                wh.checkpoint.save(folder, objects, asynchronous=asynchronous).wait()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert len(os.listdir(folder)) == 3, "unfinished files are left"
        assert tf.train.latest_checkpoint(folder) == path
        fresh = make()
        wh.checkpoint.restore(folder, fresh)
        np.testing.assert_array_equal(fresh["v"].numpy(), VALUE)
    assert shutil.disk_usage(folder).free
    assert wh.checkpoint.save(folder, objects).path == f"{folder}/ckpt-2"
