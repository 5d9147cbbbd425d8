"""What this machine and its Horovod are: the facts that launching and checking decide on, found without TensorFlow."""

from __future__ import annotations

import glob
import importlib.metadata
import importlib.util
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass


class LaunchError(Exception):
    """Something is missing or was asked for wrongly; its text is one line for the user."""


@dataclass(frozen=True)
class Mpi:
    """The MPI found on the search path. `version` is None where it is not Open MPI."""

    mpirun: str
    version: tuple[int, ...] | None

    @property
    def usable(self) -> bool:
        """Whether horovodrun can drive it: it passes options that Open MPI 5 no longer takes."""
        return self.version is not None and self.version[:1] == (4,)

    def __str__(self) -> str:
        return "not Open MPI" if self.version is None else "Open MPI " + ".".join(map(str, self.version))


@dataclass(frozen=True)
class Horovod:
    """An installed Horovod: what it can do, and the TensorFlow it was built for."""

    version: str
    tensorflow: str | None
    mpi: bool
    gloo: bool
    nccl: bool
    sha256: str | None = None  # of the wheel that it was installed from

    def __str__(self) -> str:
        parts = [name for name, has in (("Gloo", self.gloo), ("MPI", self.mpi), ("NCCL", self.nccl)) if has]
        return (
            f"Horovod {self.version} for TensorFlow {self.tensorflow or '(none)'} with {', '.join(parts) or 'nothing'}"
        )


@dataclass(frozen=True)
class Machine:
    """One host, as far as launching ranks on it depends on it."""

    cores: int
    root: bool
    loopback_mtu: int | None
    mpi: Mpi | None
    horovod: Horovod | None


def search_path(environ: dict[str, str] | os._Environ[str] = os.environ) -> str:
    """PATH with this Python's own scripts first, so that an environment that was not activated works too."""
    return os.pathsep.join([os.path.dirname(sys.executable), environ.get("PATH", os.defpath)])


def find_machine() -> Machine:
    return Machine(cores(), os.geteuid() == 0, loopback_mtu(), find_mpi(), find_horovod())


def cores(cgroup: pathlib.Path = pathlib.Path("/sys/fs/cgroup/cpu.max")) -> int:
    """The cores this process may use: by affinity, and by a container's quota."""
    count = len(os.sched_getaffinity(0))
    try:
        quota, period = cgroup.read_text().split()
        return count if quota == "max" else max(1, min(count, int(quota) // int(period)))
    except (OSError, ValueError):
        return count


def loopback_mtu(path: pathlib.Path = pathlib.Path("/sys/class/net/lo/mtu")) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def find_mpi() -> Mpi | None:
    mpirun = shutil.which("mpirun", path=search_path())
    if mpirun is None:
        return None
    run = subprocess.run([mpirun, "--version"], capture_output=True, text=True, timeout=60, check=False)
    return Mpi(mpirun, parse_mpi_version(run.stdout))


def parse_mpi_version(text: str) -> tuple[int, ...] | None:
    """The version in what `mpirun --version` says; None where it is not Open MPI.

    >>> parse_mpi_version("mpirun (Open MPI) 4.1.8")
    (4, 1, 8)
    """
    match = re.search(r"\(Open MPI\) (\d+(?:\.\d+)*)", text)
    return tuple(int(part) for part in match.group(1).split(".")) if match else None


def find_horovod() -> Horovod | None:
    """The installed Horovod, read from its files: asking it would import TensorFlow, which takes seconds."""
    try:
        distribution = importlib.metadata.distribution("horovod")
    except importlib.metadata.PackageNotFoundError:
        return None
    spec = importlib.util.find_spec("horovod")
    root = (
        pathlib.Path(next(iter(spec.submodule_search_locations))) if spec and spec.submodule_search_locations else None
    )
    libraries = glob.glob(str(root / "tensorflow" / "mpi_lib*.so")) if root else []
    code = pathlib.Path(libraries[0]).read_bytes() if libraries else b""
    return Horovod(
        version=distribution.version,
        tensorflow=_built_for(root),
        mpi=b"libmpi.so" in code,
        gloo=b"GlooContext" in code,
        nccl=b"ncclAllReduce" in code,
        sha256=_wheel_hash(distribution),
    )


def _built_for(root: pathlib.Path | None) -> str | None:
    try:
        version = json.loads((root / "metadata.json").read_text())["tensorflow"] if root else None
        return None if version is None else str(version)
    except (OSError, ValueError, KeyError):
        return None


def _wheel_hash(distribution: importlib.metadata.Distribution) -> str | None:
    """The hash of the wheel, as pip notes it (PEP 610)."""
    try:
        noted = json.loads(distribution.read_text("direct_url.json") or "{}")
        value = noted.get("archive_info", {}).get("hashes", {}).get("sha256")
    except ValueError:
        return None
    return None if value is None else str(value)
