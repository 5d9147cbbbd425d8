"""The files of a folder: at every moment the recorded checkpoint is whole."""

import os
import subprocess
import sys
import textwrap

import pytest
import tensorflow as tf

from tests.cluster.harness import ROOT
from whaleish.checkpoint import CheckpointError, folder


def write(path, keep=1):
    """A checkpoint of two files, committed."""
    writing = folder.begin(path)
    for kind in ("index", "data-00000-of-00001"):
        writing.merged.with_name(f"{writing.merged.name}.{kind}").write_text(kind)
    folder.commit(writing, keep)
    folder.end(writing)
    return writing.number


def names(number):
    return {f"ckpt-{number}.data-00000-of-00001", f"ckpt-{number}.index"}


def test_numbers_go_on_and_old_ones_go(tmp_path):
    assert [write(tmp_path, keep=2) for _ in range(4)] == [1, 2, 3, 4]
    assert set(os.listdir(tmp_path)) == {"checkpoint"} | names(3) | names(4)
    assert folder.listed(tmp_path) == [3, 4]
    state = tf.train.get_checkpoint_state(str(tmp_path))
    assert state.model_checkpoint_path == str(tmp_path / "ckpt-4")
    assert [os.path.basename(path) for path in state.all_model_checkpoint_paths] == ["ckpt-3", "ckpt-4"]


def test_what_killed_saves_left_is_removed_and_nothing_else(tmp_path):
    write(tmp_path)
    foreign = ["ckpt-9.index", "ckpt-9.data-00000-of-00001", "model.index", "notes.txt", "ckpt-7.data", ".ckpt-8"]
    for name in [*foreign, "ckpt-5.data-00000-of-00002", "ckpt-1.tmp"]:
        (tmp_path / name).write_text("")
    (tmp_path / ".ckpt-2.abc123").mkdir()
    (tmp_path / ".ckpt-2.abc123" / "rank-00000.index").write_text("")
    assert write(tmp_path) == 10
    assert set(os.listdir(tmp_path)) == {"checkpoint", "ckpt-1.tmp", *foreign} | names(10)


def test_two_programs_do_not_save_in_one_folder_at_once(tmp_path):
    writing = folder.begin(tmp_path)
    with pytest.raises(CheckpointError, match="another program is saving"):
        folder.begin(tmp_path)
    folder.end(writing)
    folder.end(writing)
    assert write(tmp_path) == 1


KILLED = """
    import itertools, os, pathlib, signal, sys
    from whaleish.checkpoint import folder
    from tests.checkpoint.test_folder import write

    EVENTS = {"os.rename", "os.remove", "os.rmdir", "os.mkdir", "open"}  # each of them is about to change something

    def save_until(path, last):
        done = itertools.count()

        def hook(event, arguments):
            if event in EVENTS and next(done) == last:
                os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(hook)
        write(path, keep=1)
        os._exit(0)

    for last in itertools.count():
        path = pathlib.Path(sys.argv[1]) / str(last)
        write(path, keep=2), write(path, keep=2)
        child = os.fork()
        if child == 0:
            save_until(path, last)
        if os.waitpid(child, 0)[1] == 0:
            break
    print(last)
    """


def test_killed_before_any_change_to_the_folder(tmp_path):
    """Wherever a save ended, the recorded checkpoints are whole, and the next save leaves nothing but its own."""
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(KILLED), str(tmp_path)], cwd=ROOT, check=False, capture_output=True
    )
    assert ended.returncode == 0, ended.stderr.decode()[-3000:]
    last = int(ended.stdout.split()[-1])
    assert last > 15
    found = []
    for where in (tmp_path / str(number) for number in range(last + 1)):
        found.append(folder.listed(where))
        assert all(names(number) <= set(os.listdir(where)) for number in found[-1])
        number = write(where)  # no lock is left either
        assert set(os.listdir(where)) == {"checkpoint"} | names(number)
    assert found == sorted(found, key=len, reverse=True)
    assert [1, 2] in found
    assert found[-1] == [3]


def test_a_folder_that_cannot_be(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match=r"file.*Give a folder in which files can be made"):
        folder.begin(tmp_path / "file" / "below")


def test_files_that_the_chief_does_not_see(tmp_path):
    (tmp_path / "rank-00000.index").write_text("")
    prefixes = [tmp_path / "rank-00000", tmp_path / "rank-00001"]
    assert folder.missing(prefixes) == [prefixes[1]]
