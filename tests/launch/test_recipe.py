"""How Horovod is built: what is missing, the cache's keys, the build's environment."""

import itertools
from dataclasses import replace

import pytest

from whaleish.launch import recipe
from whaleish.launch.recipe import Options, Tools

TOOLS = Tools(
    tensorflow="tensorflow-cpu 2.21.0",
    tensorflow_supported=True,
    compiler="/usr/bin/g++",
    cmake="/usr/bin/cmake",
    mpi="Open MPI 4.1.8",
    mpi_usable=True,
    mpi_compiler="/usr/bin/mpicxx",
    nvcc=None,
)


def test_nothing_is_missing():
    assert recipe.missing(TOOLS, Options()) == []


@pytest.mark.parametrize(
    ("change", "options", "text"),
    [
        ({"tensorflow": None}, Options(), "TensorFlow is not installed: pip install"),
        ({"tensorflow": "tensorflow 2.9.0", "tensorflow_supported": False}, Options(), "2.9.0 was found"),
        ({"compiler": None}, Options(), "no C++ compiler (g++ or clang++): on Debian, apt-get install g++"),
        ({"cmake": None}, Options(), "no cmake: pip install cmake"),
        ({"build_packages": ("wheel",)}, Options(), "pip install wheel"),
        (
            {"mpi": None, "mpi_usable": False},
            Options(),
            "there is no MPI, and horovodrun needs Open MPI 4: pip install",
        ),
        ({"mpi": "Open MPI 5.0.1", "mpi_usable": False}, Options(), "Open MPI 5.0.1 was found"),
        ({"mpi_compiler": None}, Options(), "MPI has no mpicxx"),
        ({}, Options(nccl=True), "--nccl needs CUDA's nvcc"),
    ],
)
def test_what_is_missing_is_one_line_with_a_remedy(change, options, text):
    (line,) = recipe.missing(replace(TOOLS, **change), options)
    assert text in line


def test_without_mpi_none_is_needed():
    assert recipe.missing(replace(TOOLS, mpi=None, mpi_usable=False, mpi_compiler=None), Options(mpi=False)) == []


def test_everything_missing_is_said_at_once():
    tools = replace(TOOLS, tensorflow=None, compiler=None, cmake=None, mpi=None, mpi_usable=False)
    assert len(recipe.missing(tools, Options())) == 4


def test_keys_differ_where_wheels_do():
    variants = [
        (TOOLS, Options()),
        (TOOLS, Options(mpi=False)),
        (TOOLS, Options(nccl=True)),
        (replace(TOOLS, tensorflow="tensorflow-cpu 2.21.1"), Options()),
        (replace(TOOLS, tensorflow="tensorflow 2.21.0"), Options()),
        (replace(TOOLS, mpi="Open MPI 4.0.3"), Options()),
    ]
    keys = [recipe.key(*variant) for variant in variants]
    assert all(one != other for one, other in itertools.combinations(keys, 2))
    assert all("/" not in key and " " not in key for key in keys)


def test_keys_agree_where_wheels_do():
    assert recipe.key(TOOLS, Options()) == recipe.key(replace(TOOLS, mpi="Open MPI 4.1.6", cmake="x"), Options())
    without = Options(mpi=False)
    assert recipe.key(TOOLS, without) == recipe.key(replace(TOOLS, mpi=None), without)


def test_shim_forwards_the_moved_header(tmp_path):
    folder = recipe.write_shim(tmp_path)
    header = folder / "tensorflow/compiler/xla/client/xla_builder.h"
    assert header.read_text() == '#include "xla/hlo/builder/xla_builder.h"\n'


def test_build_environment(tmp_path):
    env = recipe.build_environment(
        {"HOME": "/root", "CPLUS_INCLUDE_PATH": "/mine"}, "/bin", tmp_path / "tf", tmp_path / "shim", Options(), jobs=3
    )
    assert env["CPLUS_INCLUDE_PATH"].split(":") == [
        f"{tmp_path}/tf/external/farmhash_archive/src",
        f"{tmp_path}/tf/external/highwayhash",
        f"{tmp_path}/shim",
        "/mine",
    ]
    assert (env["HOME"], env["PATH"], env["MAKEFLAGS"]) == ("/root", "/bin", "-j3")
    assert env["CMAKE_POLICY_VERSION_MINIMUM"] == "3.5"
    assert env["HOROVOD_WITH_MPI"] == "1"
    assert env["LDFLAGS"] == "-Wl,-rpath,$ORIGIN/../../../.."
    assert "HOROVOD_GPU_OPERATIONS" not in env


def test_build_environment_of_options(tmp_path):
    env = recipe.build_environment({}, "/bin", tmp_path, tmp_path, Options(mpi=False, nccl=True), jobs=1)
    assert env["HOROVOD_WITHOUT_MPI"] == "1"
    assert "HOROVOD_WITH_MPI" not in env
    assert env["HOROVOD_GPU_OPERATIONS"] == "NCCL"
