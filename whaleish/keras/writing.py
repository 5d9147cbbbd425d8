"""Callbacks that write files, over several processes: the chief's alone do."""

from __future__ import annotations

import copy
from typing import Any

import keras

_WRITING = (keras.callbacks.CSVLogger, keras.callbacks.TensorBoard)
"""Callbacks that write, and do nothing that the other ranks would miss."""


def without_writing(callbacks: Any) -> Any:
    """The callbacks that a rank runs which is not the chief, of those that were given to all.

    What saves the model stays, since all ranks save together; so does what restores it.
    """
    if isinstance(callbacks, keras.callbacks.CallbackList) or callbacks is None:
        return callbacks
    given = callbacks if isinstance(callbacks, list | tuple) else [callbacks]
    return [_kept(callback) for callback in given if not isinstance(callback, _WRITING)]


def _kept(callback: Any) -> Any:
    if isinstance(callback, keras.callbacks.BackupAndRestore) and callback.delete_checkpoint:
        callback = copy.copy(callback)
        callback.delete_checkpoint = False  # the chief clears away
    return callback
