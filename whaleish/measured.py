"""Measured memory: the most that a device, or this process, has held."""

from __future__ import annotations

import pathlib

import tensorflow as tf

_STATUS, _CLEAR = pathlib.Path("/proc/self/status"), pathlib.Path("/proc/self/clear_refs")


def peak_memory(*, reset: bool = False) -> dict[str, int]:
    """The most bytes that were held at a time, to be compared with `plan.estimate()`.

    Of a GPU that is what TensorFlow's allocator gave out. Of CPUs it is what this process had resident: Python,
    TensorFlow and all virtual devices together, with what the allocator keeps for later. So compare what it grew by.

    Args:
      reset: begin anew after this: what is held now is then the most so far.

    Returns:
      The bytes of each GPU of this process, by TensorFlow's name of it ("GPU:0"); without any {"process": bytes}.

    Raises:
      OSError: the system keeps no such numbers, or cannot begin anew: only Linux does.
    """
    found: dict[str, int] = {}
    for number, _ in enumerate(tf.config.list_logical_devices("GPU")):
        found[f"GPU:{number}"] = int(tf.config.experimental.get_memory_info(f"GPU:{number}")["peak"])
        if reset:
            tf.config.experimental.reset_memory_stats(f"GPU:{number}")
    if not found:
        found["process"] = int(_STATUS.read_text().partition("VmHWM:")[2].split()[0]) * 1024
        if reset:
            _CLEAR.write_text("5")
    return found
