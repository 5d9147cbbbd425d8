"""The files of a folder: at every moment the recorded checkpoint is whole."""

import os
import subprocess
import sys
import textwrap

import pytest
import tensorflow as tf

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
    # One that is killed leaves no lock.
    script = f"""
        import os, pathlib, signal
        from whaleish.checkpoint import folder
        folder.begin(pathlib.Path({str(tmp_path)!r}))
        os.kill(os.getpid(), signal.SIGKILL)
        """
    ended = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=False, capture_output=True)
    assert ended.returncode == -9, ended.stderr
    assert any(name.startswith(".ckpt-2.") for name in os.listdir(tmp_path))
    assert write(tmp_path) == 2
    assert set(os.listdir(tmp_path)) == {"checkpoint"} | names(2)


def test_a_folder_that_cannot_be(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match=r"no checkpoint can be saved in .*file"):
        folder.begin(tmp_path / "file" / "below")


def test_files_that_the_chief_does_not_see(tmp_path):
    (tmp_path / "rank-00000.index").write_text("")
    prefixes = [tmp_path / "rank-00000", tmp_path / "rank-00001"]
    assert folder.missing(prefixes) == [prefixes[1]]
