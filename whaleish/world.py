"""What `wh.init()` sets up: the devices of this process, Horovod, and the variable creator. Once per process."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from whaleish.cluster import Cluster

_log = logging.getLogger("whaleish")

STALL_CHECK_SECONDS = "10"
"""After so long Horovod logs which rank has not come to a collective; its own default is 60."""

STALL_SHUTDOWN_SECONDS = "900"
"""After so long the job ends with an error on every rank; Horovod's own default is to wait for ever."""

FUSION_BYTES = str(16 << 20)
"""So much Horovod puts into one message, by way of a buffer that it keeps for each process set. Steps group what is
small themselves; with Horovod's default of 128 MB a rank took 430 MB more (measured)."""


@dataclass(frozen=True)
class World:
    """The devices that a program is compiled for.

    Attributes:
      devices: TensorFlow's names of the devices in this process; under horovodrun there is one.
      size: how many parts there are in all: processes under horovodrun, else `len(devices)`.
      rank: which process this is.
      distributed: whether there is one part per process, over Horovod.
      cluster: what was given to `init` as a description of the hardware; None: the nominal rates of `Cluster`.
    """

    devices: tuple[str, ...]
    size: int
    rank: int = 0
    distributed: bool = False
    cluster: Cluster | None = None

    @property
    def processes(self) -> int:
        """How many processes there are; the devices of a single one are all its own."""
        return self.size if self.distributed else 1

    @property
    def rates(self) -> Cluster:
        """The cluster by which costs are estimated."""
        return self.cluster or Cluster(self.size)


_world: World | None = None
_asked: tuple | None = None


def init(
    virtual_devices: int | None = None, devices: int | Sequence[int | str] | None = None, cluster: Cluster | None = None
) -> None:
    """Sets up this process. Call it before making models and optimizers.

    Calling it again the same way does nothing, except after `keras.utils.clear_session()`, which makes TensorFlow
    forget the variable creator: then it puts that back.

    Alone, the program gets all local devices: the GPUs if there are any, else the CPUs. Under `horovodrun` it gets one
    device per process: the GPU of its local rank if there are any, else the CPU. From here on `tf.Variable`, and so
    Keras, makes variables that can be laid out over the devices.

    Args:
      virtual_devices: makes so many CPU devices in this process, instead of taking real ones.
      devices: which of the local devices to take: how many, or their indices or TensorFlow's names.
      cluster: a `whaleish.cluster.Cluster` that describes the hardware, for costs; the default has nominal rates.

    Raises:
      RuntimeError: it was called before with other arguments, TensorFlow has started in a way that does not allow
        this any more, or Horovod is missing under `horovodrun`.
      ValueError: arguments that do not go together, or more devices than there are.
    """
    global _world, _asked
    asked = (virtual_devices, devices if isinstance(devices, int | None) else tuple(devices), cluster)
    if _world is not None:
        if asked != _asked:
            raise RuntimeError(
                f"wh.init{_call_text(*asked)} after wh.init{_call_text(*_asked)}: a process is set up once. "
                "Keep one of the two calls, or start a new process."
            )
        _install_creator()
        return
    launched = _launched()
    if launched and (virtual_devices is not None or devices is not None):
        raise ValueError(
            f"wh.init{_call_text(*asked)} under horovodrun: each process has one device there. Call wh.init() without "
            "virtual_devices and devices, or start the program without horovodrun."
        )
    if cluster is not None and not isinstance(cluster, Cluster):
        raise ValueError(
            f"wh.init(cluster={cluster!r}): give a whaleish.cluster.Cluster; files and presets are not read yet"
        )
    made = _join_ranks(cluster) if launched else _alone(virtual_devices, devices, cluster)
    if cluster is not None and cluster.size != made.size:
        raise ValueError(
            f"wh.init(cluster={cluster!r}): it has {cluster.size} devices, and the program has {made.size}"
        )
    _world = made
    _asked = asked
    _install_creator()


def _install_creator() -> None:
    from whaleish.state import creator  # it needs `world`

    creator.install()


def world() -> World:
    """What `init` set up.

    Raises:
      RuntimeError: it was not called.
    """
    if _world is None:
        raise RuntimeError("call wh.init() first: at the top of the program, before models and optimizers are made")
    return _world


def rank() -> int:
    """Which process this is; 0 when alone."""
    return world().rank


def size() -> int:
    """How many devices the program runs on, in all processes."""
    return world().size


def is_chief() -> bool:
    """Whether this is the process that should print and save."""
    return world().rank == 0


def _call_text(virtual_devices: Any, devices: Any, cluster: Any) -> str:
    given = {"virtual_devices": virtual_devices, "devices": devices, "cluster": cluster}
    return "(" + ", ".join(f"{name}={value!r}" for name, value in given.items() if value is not None) + ")"


def _launched() -> bool:
    """Whether a launcher of Horovod's started this process as one of several ranks."""
    return any(f"{prefix}_RANK" in os.environ and f"{prefix}_SIZE" in os.environ for prefix in _PREFIXES)


_PREFIXES = ("HOROVOD", "OMPI_COMM_WORLD")


def _join_ranks(cluster: Any) -> World:
    # Horovod reads these when it starts.
    os.environ.setdefault("HOROVOD_STALL_CHECK_TIME_SECONDS", STALL_CHECK_SECONDS)
    os.environ.setdefault("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", STALL_SHUTDOWN_SECONDS)
    os.environ.setdefault("HOROVOD_FUSION_THRESHOLD", FUSION_BYTES)
    try:
        import horovod.tensorflow as hvd
    except ImportError as error:
        raise RuntimeError(
            "this program runs under horovodrun, but Horovod is not installed for this Python: run "
            f"`whaleish install-horovod` ({type(error).__name__}: {error})"
        ) from error
    hvd.init(process_sets="dynamic")  # axes of a mesh become sets when a plan has them
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        return World(("/device:CPU:0",), hvd.size(), hvd.rank(), True, cluster)
    if hvd.local_rank() >= len(gpus):
        raise ValueError(f"rank {hvd.rank()} is number {hvd.local_rank()} on its host, which has {len(gpus)} GPUs")
    try:
        tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")
    except RuntimeError as error:
        raise RuntimeError(
            "TensorFlow has already started, with all GPUs of this host; call wh.init() before any TensorFlow op"
        ) from error
    return World(("/device:GPU:0",), hvd.size(), hvd.rank(), True, cluster)


def _alone(virtual_devices: int | None, devices: int | Sequence[int | str] | None, cluster: Any) -> World:
    if virtual_devices is not None:
        _make_virtual(virtual_devices)
    names = [device.name for device in tf.config.list_logical_devices("GPU")] if virtual_devices is None else []
    names = names or [device.name for device in tf.config.list_logical_devices("CPU")][:virtual_devices]
    if devices is not None:
        names = _pick(names, range(devices) if isinstance(devices, int) else devices)
    return World(tuple(names), len(names), cluster=cluster)


def _make_virtual(count: int) -> None:
    if count < 1:
        raise ValueError(f"virtual_devices={count}: a program needs at least one device")
    try:
        configuration = [tf.config.LogicalDeviceConfiguration() for _ in range(count)]
        tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], configuration)
    except RuntimeError as error:
        there = len(tf.config.list_logical_devices("CPU"))
        if there < count:
            raise RuntimeError(
                f"virtual_devices={count}, but TensorFlow has already started, with {there} CPU device"
                f"{'s' if there > 1 else ''}; call wh.init() before any TensorFlow op"
            ) from error


def _pick(names: list[str], wanted: Sequence[int | str]) -> list[str]:
    picked = []
    for want in wanted:
        name = names[want] if isinstance(want, int) and 0 <= want < len(names) else want
        name = name if isinstance(name, int) or name.startswith("/device:") else f"/device:{name.lstrip('/')}"
        if name not in names or name in picked:
            raise ValueError(
                f"device {want!r} of {list(wanted)} was asked for {'twice' if name in picked else 'and is not there'}; "
                f"there {'is' if len(names) == 1 else 'are'} {len(names)}: {', '.join(names)}"
            )
        picked.append(name)
    if not picked:
        raise ValueError("devices=[] leaves no device to run on")
    return picked


def _reset() -> None:
    """Forgets what `init` did, so that a test can call it again. Devices and Horovod stay as they are."""
    global _world, _asked
    from whaleish.state import creator

    creator.uninstall()
    _world = _asked = None
