"""The files of a folder of checkpoints: what is there, how a new one takes the place of the one before.

checkpoint                        which one is the latest: TensorFlow's text, replaced last, in one go
ckpt-7.index                      a whole checkpoint: TensorFlow's
ckpt-7.data-00000-of-00002
.ckpt-8.h3k1/                     one that is being written; nobody reads it, and the next save removes what a
                                  killed one left
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from whaleish.checkpoint.errors import CheckpointError

STATE = "checkpoint"
OLD = "old"
_FILE = re.compile(r"ckpt-(\d+)\.(index|data-\d{5}-of-\d{5})")
_WORK = re.compile(r"\.ckpt-(\d+)\.[0-9a-f]+")
_LISTED = re.compile(r'^all_model_checkpoint_paths: "ckpt-(\d+)"$', re.MULTILINE)


class Lock:
    """Keeps other programs from saving in a folder, where its file system knows locks. Ends with the process."""

    def __init__(self, folder: Path) -> None:
        self._descriptor: int | None = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.release()
            raise CheckpointError(
                f"another program is saving a checkpoint in {str(folder)!r} at this moment; give each program a folder "
                "of its own"
            ) from None
        except OSError:
            self.release()

    def release(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


@dataclass(frozen=True)
class Writing:
    """A checkpoint that is being written.

    Attributes:
      folder: where it will be.
      work: a folder in it for what is not finished.
      number: of the checkpoint.
      lock: the chief's.
    """

    folder: Path
    work: Path
    number: int
    lock: Lock | None = None

    @property
    def prefix(self) -> Path:
        """What TensorFlow calls the finished checkpoint."""
        return self.folder / f"ckpt-{self.number}"

    @property
    def merged(self) -> Path:
        return self.work / self.prefix.name

    def of_rank(self, rank: int) -> Path:
        """The prefix of the files that a rank writes."""
        return self.work / f"rank-{rank:05d}"


def begin(folder: Path) -> Writing:
    """Makes room for the next checkpoint of a folder, and removes what saves that were killed left behind.

    Raises:
      CheckpointError: another program saves there now, or the folder cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = Lock(folder)
        try:
            _remove_leftovers(folder)
            number = 1 + max(_numbers(folder), default=0)
            work = folder / f".ckpt-{number}.{secrets.token_hex(4)}"
            work.mkdir()
        except BaseException:
            lock.release()
            raise
    except OSError as error:
        raise CheckpointError(f"{error}. Give a folder in which files can be made") from error
    return Writing(folder, work, number, lock)


def commit(writing: Writing, keep: int) -> None:
    """Gives a merged checkpoint its name, records it as the latest, and then removes old ones beyond `keep`.

    At every moment the recorded checkpoint is whole. What was written is on the disk before it is recorded.
    """
    merged = sorted(writing.work.glob(f"{writing.merged.name}.*"))
    index = [file for file in merged if file.suffix == ".index"]
    for file in [*(file for file in merged if file not in index), *index]:
        sync(file)
        os.rename(file, writing.folder / file.name)
    sync(writing.folder)
    kept = [*[one for one in listed(writing.folder) if one != writing.number][-keep:], writing.number][-keep:]
    old = [number for number in listed(writing.folder) if number not in kept]
    (writing.work / OLD).write_text(" ".join(map(str, old)))  # for who cleans up, if this ends here
    state = writing.work / STATE
    state.write_text(
        f'model_checkpoint_path: "ckpt-{writing.number}"\n'
        + "".join(f'all_model_checkpoint_paths: "ckpt-{number}"\n' for number in kept)
    )
    sync(state)
    os.replace(state, writing.folder / STATE)
    sync(writing.folder)
    for number in old:
        _remove_checkpoint(writing.folder, number)


def end(writing: Writing) -> None:
    """Removes the folder of unfinished files. After a failure as after a success, and safe to repeat."""
    shutil.rmtree(writing.work, ignore_errors=True)
    if writing.lock is not None:
        writing.lock.release()


def listed(folder: Path) -> list[int]:
    """The numbers of the checkpoints that are recorded in a folder, the latest last."""
    try:
        return [int(number) for number in _LISTED.findall((folder / STATE).read_text())]
    except (FileNotFoundError, UnicodeDecodeError):
        return []


def missing(prefixes: Sequence[Path]) -> list[Path]:
    """Those of some prefixes of which there are no files to be seen."""
    gone = []
    for prefix in prefixes:
        os.listdir(prefix.parent)  # has a network file system look again
        if not prefix.with_name(f"{prefix.name}.index").exists():
            gone.append(prefix)
    return gone


def sync(path: Path) -> None:
    """Waits until a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF):  # of file systems that do not have it
            raise
    finally:
        os.close(descriptor)


def _numbers(folder: Path) -> list[int]:
    found = [_FILE.fullmatch(name) for name in os.listdir(folder)]
    return [int(match[1]) for match in found if match] + listed(folder)


def _remove_leftovers(folder: Path) -> None:
    """Of saves that were killed: what is unfinished or not recorded, and what they had still to remove."""
    recorded = set(listed(folder))
    for name in os.listdir(folder):
        match = _WORK.fullmatch(name)
        if match is None:
            continue
        number = int(match[1])
        old = folder / name / OLD
        for one in map(int, old.read_text().split()) if number in recorded and old.exists() else [number]:
            if one not in recorded:
                _remove_checkpoint(folder, one)
        shutil.rmtree(folder / name, ignore_errors=True)
    names = set(os.listdir(folder))
    for name in names:
        match = _FILE.fullmatch(name)
        if match is not None and f"ckpt-{match[1]}.index" not in names:  # data alone, which nobody can read
            (folder / name).unlink(missing_ok=True)


def _remove_checkpoint(folder: Path, number: int) -> None:
    """The index first: data without one are a leftover."""
    (folder / f"ckpt-{number}.index").unlink(missing_ok=True)
    for file in folder.glob(f"ckpt-{number}.data-*"):
        file.unlink(missing_ok=True)
