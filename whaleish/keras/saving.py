"""Saving of a distributed model over several processes: all ranks call it, and the chief writes.

All read the weights, as those that lie in parts are gathered by all ranks together. Each writes into a folder of its
own, that of the chief beside the file to be, whose place it takes when it is whole; what the others wrote goes. When a
call returns the file is there, for all of them.
"""

from __future__ import annotations

import functools
import inspect
import os
import shutil
import tempfile
from collections.abc import Callable
from typing import Any

import keras

from whaleish.meeting import AbsentError, DisagreementError, Meeting
from whaleish.world import world

SAVES = ("save", "save_weights", "export")

WRITTEN_TIMEOUT_S = 600.0
"""So long the ranks wait until the last of them has written."""


def joined_save(model: keras.Model, name: str) -> Callable[..., Any]:
    """A way to save the model as one of all ranks, which is done once."""
    save = getattr(model, name)
    signature = inspect.signature(save)
    what = f"{name} of the model {model.name!r}"

    @functools.wraps(save)
    def joined(*args: Any, **kwargs: Any) -> None:
        given = signature.bind(*args, **kwargs)
        where = next(iter(given.arguments))
        target = os.path.abspath(os.fspath(given.arguments[where]))
        folder = _together(what, functools.partial(_new_folder, target))
        made = given.arguments[where] = os.path.join(folder, os.path.basename(target))

        def write() -> None:
            save(*given.args, **given.kwargs)
            if world().rank == 0:
                _take_place(made, target)

        try:
            _together(what, write)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    return joined


def _new_folder(target: str) -> str:
    """Where this rank writes."""
    beside = None if world().rank else os.path.dirname(target)
    return tempfile.mkdtemp(prefix=".whaleish-save-", dir=beside)


def _take_place(made: str, target: str) -> None:
    """What was written becomes what was to be written; of a folder the old one goes first."""
    if os.path.isdir(made) and os.path.isdir(target):
        shutil.rmtree(target)
    os.replace(made, target)


def _together(what: str, act: Callable[[], Any]) -> Any:
    """Does something on each rank, and waits for the others; raises on all ranks if one of them could not."""
    error: Exception | None = None
    result = None
    try:
        result = act()
    except Exception as caught:
        error = caught
    meeting: Meeting[list[bytes]] = Meeting.numbered("keras.save", bytes([error is not None]))
    try:
        failures = meeting.attend(WRITTEN_TIMEOUT_S, lambda messages: messages)
    except AbsentError as absent:
        raise AbsentError(
            f"{what}: {absent} Saving a distributed model belongs to all ranks together; call it on every rank"
        ) from absent
    if error is not None:
        raise error
    failed = [rank for rank, failure in enumerate(failures) if failure != b"\0"]
    if failed:
        raise DisagreementError(f"{what}: rank {failed[0]} could not write, and says why; nothing was saved")
    return result
