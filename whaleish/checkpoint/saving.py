"""`wh.checkpoint.save`: every rank writes what it holds, and the chief makes one checkpoint of it."""

from __future__ import annotations

import hashlib
import json
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow as tf

from whaleish.agreement import agree
from whaleish.checkpoint import folder, ranks, tf_private
from whaleish.checkpoint import objects as objects_
from whaleish.checkpoint.errors import CheckpointError
from whaleish.checkpoint.objects import Value
from whaleish.checkpoint.slices import Slice, deal, spec, within
from whaleish.state.parts import owners
from whaleish.state.ranks import collect
from whaleish.world import is_chief, rank, world

_log = logging.getLogger("whaleish")


class Saving:
    """A checkpoint that is being written, or has been.

    Attributes:
      path: what `restore` takes, and TensorFlow: the checkpoint's prefix, `folder/ckpt-7`.
    """

    def __init__(self, path: str, write: Callable[[], None]) -> None:
        self.path = path
        self._write, self._error, self._told = write, None, False
        self._thread: threading.Thread | None = None

    def __repr__(self) -> str:
        return f"<{'saved as' if self.done else 'saving as'} {self.path}>"

    @property
    def done(self) -> bool:
        """Whether it is written, or has failed."""
        return self._thread is None or not self._thread.is_alive()

    def wait(self) -> str:
        """Waits until it is written; gives its path.

        Raises:
          CheckpointError: it could not be written, which all ranks are told; the checkpoint before it is still there.
        """
        if self._thread is not None:
            self._thread.join()
        self._told = True
        if self._error is not None:
            raise self._error
        return self.path

    def _run(self) -> None:
        try:
            self._write()
        except BaseException as error:
            self._error = error
            if self._thread is not None:
                _log.error("%s", error)  # the program may end before it asks
        finally:
            del self._write  # and the values that it holds

    def _start(self, asynchronous: bool) -> None:
        if not asynchronous:
            self._run()
            return
        # Not a daemon: the interpreter waits for it at its end.
        self._thread = threading.Thread(target=self._run, name=f"whaleish.save {self.path}")
        self._thread.start()


_latest: Saving | None = None  # ranks write one checkpoint at a time, in the same order


def finish() -> None:
    """Waits for the writing that a thread of this process is at, if any; raises what nobody was told of yet."""
    if _latest is not None and not (_latest.done and _latest._told):
        _latest.wait()


@dataclass(frozen=True)
class _Stored:
    """A tensor for SaveV2."""

    key: str
    spec: str
    tensor: tf.Tensor


def save(directory: Any, objects: Any, *, keep: int = 1, asynchronous: bool = False) -> Saving:
    """Saves a checkpoint that any layout, any number of ranks and plain TensorFlow can read; all ranks call it.

    The checkpoint is one of TensorFlow's: `tf.train.Checkpoint(**objects).restore(saving.path)` reads it without
    whaleish, and `tf.train.latest_checkpoint(directory)` finds it. Every rank writes the pieces that it holds. It is
    recorded when all of it is on the disk; whatever ends a save before that leaves the checkpoint before it as it is.

    Args:
      directory: of checkpoints, on a file system that all ranks share; made if it is not there.
      objects: a dict of names and what `tf.train.Checkpoint` takes: Keras models and optimizers, variables, modules,
        lists of them; or a `tf.train.Checkpoint`.
      keep: how many of the directory's checkpoints stay, this one included; older ones are removed at the end.
      asynchronous: returns when the values are fixed, and writes in a thread; steps can go on. The interpreter waits
        for it at its end. An error is raised by `wait`, or by the next call of `save` or `restore`.

    Returns:
      The checkpoint: its `path`, and `wait`.

    Raises:
      CheckpointError: on all ranks, where one of them could not write, or not all called it.
      DisagreementError: on all ranks, where they gave different directories or objects.
    """
    global _latest
    explain = f"no checkpoint was saved in {str(directory)!r}"
    prepared: list[_Prepared] = []

    def prepare() -> str:
        finish()
        if not isinstance(keep, int) or keep < 1:
            raise ValueError(f"keep={keep!r}: give how many checkpoints stay, 1 or more")
        prepared.append(_Prepared.of(directory, objects, keep))
        return prepared[0].message()

    try:
        texts = ranks.together("call", prepare, ranks.CALL_TIMEOUT, explain)
        own = prepared[0]
        messages = [json.loads(text) for text in texts]
        if len({message["digest"] for message in messages}) > 1:
            agree("wh.checkpoint.save", own.description)
        unequal = {index for message in messages for index in message["unequal"]}
        writing = own.follow(messages[0])
        stored = _read(own, unequal)
    except BaseException:
        if prepared:
            prepared[0].abandon()
        raise
    saving = Saving(str(writing.prefix), lambda: _write(writing, stored, keep, explain))
    _latest = saving
    saving._start(asynchronous)
    if not asynchronous:
        saving.wait()
    return saving


@dataclass
class _Prepared:
    """What one rank has to save; on the chief also where."""

    target: Path
    counter: tf.Variable
    values: list[Value]
    graph: bytes
    description: str
    writing: folder.Writing | None

    @classmethod
    def of(cls, directory: Any, what: Any, keep: int) -> _Prepared:
        target = objects_.folder_of(directory)
        root = objects_.root_of(what)
        counter = root.save_counter  # tf.train.Checkpoint.restore asks for it
        values, graph = objects_.values_of(root)
        lines = [f"save, keep={keep}", f"directory {directory}", *(value.text() for value in values)]
        writing = folder.begin(target) if is_chief() else None
        return cls(target, counter, values, graph.SerializeToString(), "\n".join(lines), writing)

    def message(self) -> str:
        """For the other ranks: a hash of what must be alike, what may not be, and the chief's folder."""
        unequal = [index for index, value in enumerate(self.values) if not objects_.surely_equal(value)]
        work = (self.writing.number, self.writing.work.name) if self.writing is not None else None
        found = hashlib.blake2b(self.description.encode()).hexdigest()
        return json.dumps({"digest": found, "unequal": unequal, "work": work})

    def follow(self, chief: dict[str, Any]) -> folder.Writing:
        """Where to write, from the message of the chief."""
        number, name = chief["work"]
        self.counter.assign(number)
        return self.writing or folder.Writing(self.target, self.target / name, number)

    def abandon(self) -> None:
        """Where it comes to no writing."""
        if self.writing is not None:
            folder.end(self.writing)


def _read(own: _Prepared, unequal: set[int]) -> list[_Stored]:
    """The values that this rank writes, as they are now: what a step writes later goes to other memory."""
    shape_of = [objects_.held(value, index not in unequal) for index, value in enumerate(own.values)]
    dealt = deal(shape_of, world().processes)[rank() if world().distributed else 0]
    by_tensor: dict[int, list[Slice]] = {}
    for one in dealt:
        by_tensor.setdefault(one.tensor, []).append(one)
    stored = []
    for index, value in enumerate(own.values):
        if value.gathered and value.laid_out.on_several_ranks:  # by all ranks, in one order
            whole = collect(value.laid_out.parts, f"{value.laid_out.exchange.key}.save")
            stored += [_Stored(value.key, "", whole)] if index in by_tensor else []
            continue
        for one in by_tensor.get(index, ()):
            tensor = _tensor(value, one)
            if tensor is not None:
                stored.append(_Stored(value.key, spec(shape_of[index].shape or (), one.bounds), tensor))
    if is_chief():
        stored.append(_Stored(tf_private.GRAPH_KEY, "", tf.constant(own.graph)))
    return stored


def _tensor(value: Value, one: Slice) -> tf.Tensor | None:
    """A slice of a value."""
    variable = value.laid_out
    if variable is None:
        read = value.read() if callable(value.read) else value.read
        return None if read is None else tf.convert_to_tensor(read)
    if not variable.in_parts or value.gathered:
        whole = variable.logical_value()
        return whole if one.bounds is None else _cut(whole, one.bounds)
    parts = variable.parts
    mesh, layout = parts.mesh, parts.layout
    owner = owners(mesh, layout)[one.piece]
    piece = parts.read(next(part for part in parts.numbers if mesh.first_alike(part, layout) == owner))
    if one.bounds is None:
        return piece
    return _cut(piece, within(one.bounds, mesh.pieces(variable.shape, layout, owner)))


def _cut(tensor: tf.Tensor, bounds: Sequence[tuple[int, int]]) -> tf.Tensor:
    if all(length == size for (_, length), size in zip(bounds, tensor.shape, strict=True)):
        return tensor
    with tf.device(tensor.device):
        return tf.slice(tensor, *map(list, zip(*bounds, strict=True)))


def _write(writing: folder.Writing, stored: Sequence[_Stored], keep: int, explain: str) -> None:
    """Writes what this rank has; then the chief makes one checkpoint of what all have, and records it."""
    here = world()
    own = writing.of_rank(here.rank if here.distributed else 0)

    def write() -> str:
        if not stored:
            return ""
        if not writing.work.is_dir():
            raise CheckpointError(
                f"there is no folder {str(writing.work)!r}, which rank 0 has just made: give a directory of a file "
                "system that all ranks share"
            )
        with tf.device("/device:CPU:0"):
            tf.raw_ops.SaveV2(
                prefix=str(own),
                tensor_names=[one.key for one in stored],
                shape_and_slices=[one.spec for one in stored],
                tensors=[tf.identity(one.tensor) for one in stored],
            )
        for file in writing.work.glob(f"{own.name}.*"):
            folder.sync(file)
        return own.name

    def merge(names: Sequence[str]) -> str:
        if not is_chief():
            return ""
        prefixes = [writing.work / name for name in names if name]
        unseen = folder.missing(prefixes)
        if unseen:
            raise CheckpointError(
                f"rank 0 does not see {', '.join(map(str, unseen))}, which other ranks have written: give a directory "
                "of a file system that all ranks share"
            )
        tf.raw_ops.MergeV2Checkpoints(
            checkpoint_prefixes=[str(prefix) for prefix in prefixes],
            destination_prefix=str(writing.merged),
            delete_old_dirs=False,
        )
        folder.commit(writing, keep)
        return ""

    try:
        names = ranks.together("written", write, explain=explain)
        ranks.together("recorded", lambda: merge(names), explain=explain)
    finally:
        if is_chief():
            folder.end(writing)
