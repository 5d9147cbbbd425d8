"""Real ranks: each writes and reads what it holds, and all go on or all raise, in time."""

from __future__ import annotations

import glob
import os
import resource
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
import tensorflow as tf

import whaleish as wh
from tests.checkpoint.training import devices, make
from whaleish import world
from whaleish.mesh import Axis, Mesh
from whaleish.sbp import PMAX, B, P, S
from whaleish.state import gather, lay_out

pytestmark = pytest.mark.ranks


def trainings(folder: str, layouts: list[str], restored: str | None):
    """For each layout: goes on from a checkpoint, saves one, and gives the values and the next losses."""
    wh.init()
    found = []
    for layout in layouts:
        training = make(layout, seed=wh.rank())
        if restored is None:
            training.train(0, 2)
        else:
            training.train(9, 1)  # so that its variables lie on the ranks
            wh.checkpoint.restore(restored, training.objects)
        path = wh.checkpoint.save(f"{folder}/{layout}", training.objects).path
        found.append((path, training.values(), training.train(2)))
    return found


def test_from_ranks_to_one_process_and_back(ranks, tmp_path) -> None:
    layouts = ["split", "stages"]
    by_rank = ranks.run(trainings, str(tmp_path), layouts, None, timeout=120)
    (path, values, losses), _ = by_rank[0]
    for results in by_rank[1:]:
        for (_, one, then), (_, other, next_) in zip(results, by_rank[0], strict=True):
            assert all(map(np.array_equal, one, other))
            assert then == next_
    for layout, count, (path, values, losses) in zip(("plain", "2x2"), (1, 4), by_rank[0], strict=True):
        assert len(glob.glob(f"{path}.data-*")) == 2, "not every rank wrote a file"
        with devices(count):
            training = make(layout, seed=5)
            wh.checkpoint.restore(path, training.objects)
            for found, value in zip(training.values(), values, strict=True):
                np.testing.assert_array_equal(found, value)
            np.testing.assert_allclose(training.train(2), losses, rtol=1e-10)
    with devices(1):
        plain = make("plain", seed=6, compiled=False)
        tf.train.Checkpoint(**plain.objects).restore(path).assert_consumed()
        np.testing.assert_allclose(plain.train(2), losses, rtol=1e-10)
        saved = tf.train.Checkpoint(**plain.objects).save(str(tmp_path / "alone" / "ckpt"))
        values, losses = plain.values(), plain.train(2)
    for results in ranks.run(trainings, str(tmp_path / "again"), layouts, saved, timeout=120):
        for _, found, then in results:
            assert all(map(np.array_equal, found, values))
            np.testing.assert_allclose(then, losses, rtol=1e-10)


def line(*over):
    return Mesh((Axis("a", len(over)),), over)


def variables_of_all_kinds(size: int):
    """Variables in every kind of layout, in every type: with their values."""
    everywhere, stage = line(*range(size)), line(size - 1)
    made = []
    for dtype in ("bfloat16", "bool", "int8", "complex64", "float16", "float32", "float64", "uint32", "int64"):
        value = tf.cast(np.arange(35).reshape(7, 5) % 2, dtype)
        places = [((S(0),), everywhere), ((S(1),), line(*reversed(range(size)))), ((B,), stage)]
        for place in places[: 3 if dtype in ("bfloat16", "float16", "float32") else 1]:
            made.append((value, *place))
    value = tf.constant(np.arange(35.0).reshape(7, 5))
    for layout in ((P,), (PMAX,)):
        made.append((value, layout, everywhere))
    made.append((tf.ones([1, 3]), (S(0),), everywhere))  # parts without elements
    made.append((tf.zeros([0, 3]), (B,), stage))
    made.append((tf.constant(3.0), (B,), stage))
    variables = []
    for value, layout, mesh in made:
        variables.append(tf.Variable(value))
        lay_out(variables[-1], layout, mesh)
    strings = tf.Variable(["a", "b"])
    own = tf.Variable(float(world.rank()))  # not equal on all ranks: the chief's is saved
    return [*variables, strings], [*(value for value, _, _ in made), tf.constant(["a", "b"])], own


def all_kinds(folder: str):
    wh.init()
    variables, values, own = variables_of_all_kinds(wh.size())
    objects = {"variables": variables, "own": own}
    for asynchronous in (False, True):
        saving = wh.checkpoint.save(folder, objects, asynchronous=asynchronous)
        for variable in variables:
            variable.assign(tf.zeros(variable.shape, variable.dtype) if variable.dtype != tf.string else ["", ""])
        own.assign(7.0)
        assert saving.wait() == saving.path
        wh.checkpoint.restore(folder, objects)
        for found, value, variable in zip(gather(variables), values, variables, strict=True):
            np.testing.assert_array_equal(found, value.numpy(), err_msg=f"{variable.dtype} {variable.parts}")
        assert float(own) == 0.0
    # What all restored alike is not compared any more: a step can use it.
    one = next(variable for variable in variables if variable.dtype == tf.float32)
    step = wh.function(lambda x: tf.reduce_sum(one * x))
    return saving.path, float(step(np.ones([7, 5], "float32")))


@pytest.mark.parametrize("ranks", [2, 3], indirect=True)
def test_layouts_and_types(ranks, tmp_path) -> None:
    (path, total), *others = ranks.run(all_kinds, str(tmp_path), timeout=120)
    assert [total, *(other for _, other in others)] == [17.0] * ranks.size
    reader = tf.train.load_checkpoint(path)
    assert len(reader.get_variable_to_shape_map()) == 15 + 5 + 1 + 1 + 2
    assert reader.get_tensor("variables/0/.ATTRIBUTES/VARIABLE_VALUE").shape == (7, 5)
    assert float(reader.get_tensor("own/.ATTRIBUTES/VARIABLE_VALUE")) == 0.0


def balanced(folder: str):
    """A large variable that all have, after a step: each writes a part of it. And one in parts, restored by rows."""
    wh.init()
    whole, split = tf.Variable(tf.ones([1 << 20, 4])), tf.Variable(tf.ones([4, 1 << 20]))
    lay_out(whole, (B,), line(*range(wh.size())))
    lay_out(split, (S(1),), line(*range(wh.size())))
    path = wh.checkpoint.save(folder, {"whole": whole, "split": split}).path
    own = tf.Variable(tf.zeros([1 << 20, 4]))
    lay_out(own, (S(0),), line(*range(wh.size())))
    before = psutil.Process().io_counters().read_chars
    wh.checkpoint.restore(path, {"whole": own})
    read = psutil.Process().io_counters().read_chars - before
    np.testing.assert_array_equal(gather(own)[[0, -1]], np.ones([2, 4]))
    return path, read


def test_every_rank_writes_and_reads_its_share(ranks, tmp_path) -> None:
    results = ranks.run(balanced, str(tmp_path))
    path = results[0][0]
    assert max(read for _, read in results) < (16 << 20) * 0.55
    sizes = [os.path.getsize(file) for file in sorted(glob.glob(f"{path}.data-*"))]
    assert len(sizes) == 2
    assert max(sizes) <= (32 << 20) * 0.51


def failing(call):
    """How long it took to fail, and how."""
    begun = time.monotonic()
    try:
        call()
    except Exception as error:
        return time.monotonic() - begun, type(error).__name__, str(error)
    return time.monotonic() - begun, "", ""


def damage(path: str, needle: bytes) -> None:
    """Flips a bit of a value, in the file that has it."""
    for file in glob.glob(f"{path}.data-*"):
        data = bytearray(Path(file).read_bytes())
        if (place := data.find(needle)) >= 0:
            data[place] ^= 1
            Path(file).write_bytes(data)
            return
    raise AssertionError("nothing to damage")


def what_fails(folder: str):
    wh.init()
    size, rank = wh.size(), wh.rank()
    value = np.arange(float(1 << 16)).reshape(256, 256)
    v, w = tf.Variable(value, name="v"), tf.Variable(2.0, name="w")
    lay_out(v, (S(0),), line(*range(size)))
    objects = {"v": v, "w": w}
    path = wh.checkpoint.save(folder, objects).path
    found = {}
    found["directories"] = failing(lambda: wh.checkpoint.save(f"{folder}{rank}", objects))
    found["objects"] = failing(lambda: wh.checkpoint.save(folder, objects if rank else {"v": v}))
    found["keep"] = failing(lambda: wh.checkpoint.save(folder, objects, keep=0 if rank else 1))
    found["no objects"] = failing(lambda: wh.checkpoint.save(folder, objects if rank else {"v": 3}))
    found["restore"] = failing(lambda: wh.checkpoint.restore(folder, objects if rank else {"w": w}))
    found["save, restore"] = failing(lambda: (wh.checkpoint.restore if rank else wh.checkpoint.save)(folder, objects))
    # A rank whose disk is full.
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    for asynchronous in (False, True):
        if rank == size - 1:
            resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limit[1]))
        kind = "full, asynchronous" if asynchronous else "full"
        found[kind] = failing(lambda: wh.checkpoint.save(folder, objects, asynchronous=asynchronous).wait())  # noqa: B023
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    # One that is told at the next save.
    if rank == size - 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limit[1]))
    saving = wh.checkpoint.save(folder, objects, asynchronous=True)
    while not saving.done:
        time.sleep(0.01)
    resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    found["told later"] = failing(lambda: wh.checkpoint.save(folder, objects))
    # A file system that is not shared.
    home = os.getcwd()
    os.makedirs(f"{folder}/home{rank}", exist_ok=True)
    os.chdir(f"{folder}/home{rank}")
    found["not shared"] = failing(lambda: wh.checkpoint.save("saved", objects))
    os.chdir(home)
    # The checkpoint from before all this is there.
    v.assign(value * 0)
    wh.checkpoint.restore(folder, objects)
    np.testing.assert_array_equal(gather(v), value)
    # Damage in what only the last rank reads: none takes anything.
    v.assign(value * 0)
    if rank == 0:
        damage(path, value[-1].tobytes())
    w.assign(5.0)
    found["damaged"] = failing(lambda: wh.checkpoint.restore(folder, objects))
    assert float(w) == 5.0
    assert not gather(v).any()
    found["another"] = failing(lambda: wh.checkpoint.restore(folder, {"v": tf.Variable(np.zeros(3)), "w": w}))
    found["nowhere"] = failing(lambda: wh.checkpoint.restore(f"{folder}/nowhere", objects))
    again = wh.checkpoint.save(folder, objects).path
    assert np.array_equal(gather(v), value * 0)
    return found, path, again, sorted(os.listdir(folder))


def test_all_ranks_raise_and_the_checkpoint_before_stays(ranks, tmp_path) -> None:
    folder = str(tmp_path / "all")
    results = ranks.run(what_fails, folder, timeout=110)
    expected = {
        "directories": ("DisagreementError", ["directory", "all0", "all1"]),
        "objects": ("DisagreementError", ["wh.checkpoint.save", "w/.ATTRIBUTES"]),
        "keep": ("CheckpointError", ["rank 1: ValueError: keep=0"]),
        "no objects": ("CheckpointError", ["rank 0: TypeError", "give a dict"]),
        "restore": ("DisagreementError", ["wh.checkpoint.restore"]),
        "save, restore": ("DisagreementError", ["save", "restore"]),
        "full": ("CheckpointError", ["rank 1: ", "File too large", folder]),
        "full, asynchronous": ("CheckpointError", ["rank 1: ", "File too large"]),
        "told later": ("CheckpointError", ["rank 1: ", "File too large"]),
        "not shared": ("CheckpointError", ["rank 1: there is no folder", "that all ranks share"]),
        "damaged": ("CheckpointError", ["rank 1: ", "is damaged", "v (v:0)", "Checksum does not match"]),
        "another": ("CheckpointError", ["v (Variable:0): shape [256, 256], here (3,)"]),
        "nowhere": ("CheckpointError", ["there is no file nowhere.index"]),
    }
    for found, path, again, names in results:
        assert names == [
            "checkpoint",
            *(f"{Path(again).name}.{kind}" for kind in ("data-00000-of-00002", "data-00001-of-00002", "index")),
            "home0",
            "home1",
        ]
        assert path != again
        for what, (kind, said) in expected.items():
            seconds, found_kind, message = found[what]
            assert found_kind == kind, f"{what}: {found_kind}: {message}"
            assert seconds < 15, what
            for text in said:
                assert text in message, f"{what}: {message}"


def while_steps_go_on(folder: str):
    wh.init()
    training = make("split")
    losses = training.train(0, 2)
    values = training.values()
    saving = wh.checkpoint.save(folder, training.objects, asynchronous=True)
    losses += training.train(2, 6)
    saving.wait()
    after = training.train(8)
    wh.checkpoint.restore(saving.path, training.objects)
    assert all(map(np.array_equal, training.values(), values)), "steps changed what was being saved"
    assert training.train(2, 6) == losses[2:]
    assert training.train(8) == after
    return True


def test_steps_go_on_while_it_is_written(ranks, tmp_path) -> None:
    assert all(ranks.run(while_steps_go_on, str(tmp_path), timeout=90))
