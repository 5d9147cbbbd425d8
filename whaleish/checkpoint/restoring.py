"""`wh.checkpoint.restore`: every rank reads the slices that its parts need, and all or none take them."""

from __future__ import annotations

import glob
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tensorflow as tf

from whaleish.agreement import agree, digest
from whaleish.checkpoint import objects as objects_
from whaleish.checkpoint import ranks, tf_private
from whaleish.checkpoint.errors import CheckpointError
from whaleish.checkpoint.matching import Match, match
from whaleish.checkpoint.reading import Read, lines, plain, read, reads, unreadable
from whaleish.checkpoint.saving import finish
from whaleish.state import forget_assigned

TRIES = 20
"""How often the latest checkpoint is asked for, where it is removed for a newer one while it is read."""


@dataclass(frozen=True)
class Restored:
    """What was restored.

    Attributes:
      path: the checkpoint's prefix.
      waiting: variables of the checkpoint for which there is no place yet: they get their values when they are made.
      left_out: names at its top that were not asked for.
    """

    path: str
    waiting: tuple[str, ...]
    left_out: tuple[str, ...]
    _status: Any = field(repr=False)

    def assert_consumed(self) -> Restored:
        """As TensorFlow's: raises AssertionError unless by now all of the checkpoint has found its place."""
        if self._status is not None:
            self._status.assert_consumed()
        return self


def restore(directory: Any, objects: Any, *, partial: bool = False) -> Restored:
    """Restores a checkpoint into objects in whatever layout and on however many ranks they are now; all ranks call it.

    It need not be one of `save`: what `tf.train.Checkpoint` wrote is read as well. Each process reads what its parts
    need. No variable is changed before all ranks have read and checked all that they need.

    Args:
      directory: of checkpoints, of which the latest is taken; or the prefix of one: `folder/ckpt-7`.
      objects: as given to `save`. What the checkpoint has under other names at its top is left where it is. Variables
        that are not made yet, of layers or optimizers that are not built, get their values when they are.
      partial: leaves alone variables that are not in the checkpoint, and in the checkpoint what the objects have not.

    Returns:
      The checkpoint's path, and what waits or was left out.

    Raises:
      CheckpointError: on all ranks. There is none, it is damaged, or it is of other objects: all variables that do not
        fit are listed. Nothing has changed.
      DisagreementError: on all ranks, where they gave different directories or objects.
    """
    explain = f"nothing was restored from {os.fspath(directory) if _is_path(directory) else directory!r}"
    own: list[_Local] = []

    def prepare() -> str:
        finish()
        own.append(_Local.of(directory, objects))
        return json.dumps({"digest": digest(own[0].description.encode()).hex()})

    texts = ranks.together("call", prepare, ranks.CALL_TIMEOUT, explain)
    if len(set(texts)) > 1:
        agree("wh.checkpoint.restore", own[0].description)
    local = own[0]
    for _ in range(TRIES):
        prefix = local.prefix(ranks.together("latest", local.latest, explain=explain)[0])
        reading = _Reading(prefix, local, partial)
        if all(
            "gone" not in ranks.together(what, reading.unless_gone(work), explain=explain)
            for what, work in (("read", reading.read), ("restored", reading.commit))
        ):
            return Restored(str(prefix), reading.match.waiting, reading.match.left_out, reading.status)
    raise CheckpointError(
        f"{explain}: {prefix} is recorded as the latest, and its files are not there, in {_shown(prefix.parent)}. "
        f"{_ANOTHER}"
    )


@dataclass(frozen=True)
class _Local:
    """What this rank was given."""

    path: Path
    root: tf.train.Checkpoint
    values: list[objects_.Value]
    description: str

    @classmethod
    def of(cls, directory: Any, objects: Any) -> _Local:
        path = objects_.folder_of(directory)
        root = objects_.root_of(objects)
        root.save_counter  # noqa: B018  # made before it is looked for
        values, _ = objects_.values_of(root)
        lines = [f"restore {directory}", *(value.text() for value in values)]
        return cls(path, root, values, "\n".join(lines))

    @property
    def moving(self) -> bool:
        """Whether it is the latest of a folder that was asked for, which may be another one soon."""
        return self.path.is_dir()

    def prefix(self, chosen: str) -> Path:
        """The checkpoint that the chief has chosen, as this rank calls it."""
        return self.path / chosen if self.moving else self.path.with_name(chosen)

    def latest(self) -> str:
        """The checkpoint's name, for the other ranks.

        Raises:
          CheckpointError: there is none.
        """
        if not self.moving:
            name = self.path.name.removesuffix(".index")
            if not self.path.with_name(f"{name}.index").exists():
                raise CheckpointError(f"there is no file {name}.index in {_shown(self.path.parent)}{_hint(self.path)}")
            return name
        try:
            state = tf.train.get_checkpoint_state(str(self.path))
        except (UnicodeDecodeError, tf.errors.OpError):
            state = None
        if state is None or not state.model_checkpoint_path:
            unreadable = " (its file 'checkpoint' is not TensorFlow's)" if (self.path / "checkpoint").exists() else ""
            raise CheckpointError(f"no checkpoint is recorded in {_shown(self.path)}{unreadable}")
        return os.path.relpath(state.model_checkpoint_path, self.path)


class _Reading:
    """One checkpoint on its way into the objects of this rank."""

    match: Match
    status: Any = None

    def __init__(self, prefix: Path, local: _Local, partial: bool) -> None:
        self._prefix, self._local, self._partial = prefix, local, partial
        self._tensors: list[tuple[Read, tf.Tensor]] = []

    def unless_gone(self, work: Callable[[], None]) -> Callable[[], str]:
        """The work, which says so where the checkpoint was removed for a newer one meanwhile."""

        def working() -> str:
            try:
                work()
            except Exception:
                if not self._local.moving or _index(self._prefix).exists():
                    raise
                return "gone"
            return ""

        return working

    def read(self) -> None:
        """Reads what this rank needs; no variable has it yet."""
        reader = _open(self._prefix)
        shapes = reader.get_variable_to_shape_map()
        if tf_private.GRAPH_KEY not in shapes:
            raise CheckpointError(
                f"{self._prefix} is a checkpoint of names and values without objects, as tf.compat.v1.train.Saver "
                "writes; restore it with tf.train.Checkpoint into objects in place, and save these"
            )
        graph = _graph(reader, self._prefix, self._local.values)
        dtypes = reader.get_variable_to_dtype_map()
        self.match = match(self._local.root, self._local.values, graph, shapes, dtypes)
        _refuse(self.match, self._prefix, self._partial)
        self._tensors = read(self._prefix, [one for pair in self.match.pairs for one in reads(pair)])

    def commit(self) -> None:
        """Gives the variables what was read; has TensorFlow see to the rest: other objects, and what is to come."""
        done = [pair.value for pair in self.match.pairs]
        while self._tensors:
            _give(self._tensors)
        forget_assigned([value.variable for value in done])  # all ranks did it alike
        if self.match.others or self.match.waiting:
            owners = [value.owner for value in done]
            self.status = tf_private.restore_rest(self._local.root, str(self._prefix), owners)
            if not self.match.waiting:
                self.status.expect_partial()


def _give(tensors: list[tuple[Read, tf.Tensor]]) -> None:
    """Gives the last of them to its variable, and lets go of it."""
    read, tensor = tensors.pop()
    variable = read.pair.value.laid_out
    if variable is None or not variable.in_parts:
        read.pair.value.variable.assign(tensor)
    elif read.part is None:
        variable.restore_whole(tensor)
    else:
        variable.restore_part(read.part, tensor)


def _open(prefix: Path) -> Any:
    try:
        return tf.train.load_checkpoint(str(prefix))
    except (tf.errors.OpError, RuntimeError, ValueError) as error:
        raise CheckpointError(
            f"{_index(prefix)} cannot be read: {plain(error)}. {_ANOTHER}: in {_shown(prefix.parent)}"
        ) from error


def _graph(reader: Any, prefix: Path, values: list[objects_.Value]) -> tf_private.ObjectGraph:
    try:
        return tf_private.ObjectGraph.FromString(reader.get_tensor(tf_private.GRAPH_KEY))
    except Exception as error:  # TensorFlow's, or the parser's
        unread = unreadable(prefix, reader, values)
        others = f", nor can {len(unread)} of its values:\n{lines(unread)}\n" if unread else ". "
        raise CheckpointError(
            f"{prefix} is damaged: what objects it is of cannot be read: {plain(error)}{others}Its values are in "
            f"{_sizes(prefix)}. {_ANOTHER}: in {_shown(prefix.parent)}"
        ) from error


def _refuse(found: Match, prefix: Path, partial: bool) -> None:
    """Raises unless it fits, with all that does not."""
    said = [("different", found.wrong)]
    if not partial:
        said += [("not in the checkpoint", found.missing), ("in the checkpoint and not here", found.extra)]
    wrong = [f"{what} ({len(names)}):\n{lines(names)}" for what, names in said if names]
    if wrong:
        remedy = "To restore the others, say partial=True."
        remedy = "Make them as they were when it was saved." if found.wrong else remedy
        raise CheckpointError(f"{prefix} is of other objects. Variables that are\n" + "\n".join([*wrong, remedy]))


_ANOTHER = "Give the prefix of another checkpoint, folder/ckpt-7 say"


def _sizes(prefix: Path) -> str:
    """The files that hold values, with their bytes."""
    files = sorted(prefix.parent.glob(f"{glob.escape(prefix.name)}.data-*"))
    return ", ".join(f"{file.name} ({file.stat().st_size:,} bytes)" for file in files) or "no file that is there"


def _index(prefix: Path) -> Path:
    return prefix.with_name(f"{prefix.name}.index")


def _shown(folder: Path) -> str:
    """A folder, and what is in it."""
    if not folder.is_dir():
        return f"{str(folder)!r}, which is not a folder that this process sees"
    names = sorted(os.listdir(folder))
    return f"{str(folder)!r}, which has {', '.join(names[:8]) or 'nothing'}{', ...' if len(names) > 8 else ''}"


def _hint(path: Path) -> str:
    return f"; {path.name} itself is a file of another kind" if path.is_file() else ""


def _is_path(value: Any) -> bool:
    return isinstance(value, str | os.PathLike)
