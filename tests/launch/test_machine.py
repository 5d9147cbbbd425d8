"""The facts of a machine: read from files and text, and compared with what its Horovod says itself."""

import pytest

from whaleish.launch import machine


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("mpirun (Open MPI) 4.1.8\n\nReport bugs to ...", (4, 1, 8)),
        ("mpirun (Open MPI) 5.0.11rc1", (5, 0, 11)),
        ("HYDRA build details:\n    Version: 4.1", None),
        ("", None),
    ],
)
def test_versions_of_mpirun(text, version):
    assert machine.parse_mpi_version(text) == version


def test_only_open_mpi_4_is_usable():
    assert machine.Mpi("mpirun", (4, 1, 8)).usable
    assert not machine.Mpi("mpirun", (5, 0, 1)).usable
    assert not machine.Mpi("mpirun", None).usable


@pytest.mark.parametrize(("text", "quota"), [("max 100000", 64), ("150000 100000", 1), ("800000 100000", 8), ("", 64)])
def test_cores_respect_a_containers_quota(tmp_path, monkeypatch, text, quota):
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda _: set(range(64)))
    (tmp_path / "cpu.max").write_text(text)
    assert machine.cores(tmp_path / "cpu.max") == quota


def test_loopback_mtu(tmp_path):
    (tmp_path / "mtu").write_text("65536\n")
    assert machine.loopback_mtu(tmp_path / "mtu") == 65536
    assert machine.loopback_mtu(tmp_path / "none") is None


def test_search_path_has_this_pythons_scripts_first(monkeypatch):
    monkeypatch.setattr(machine.sys, "executable", "/env/bin/python")
    assert machine.search_path({"PATH": "/usr/bin"}) == "/env/bin:/usr/bin"


def test_what_is_read_from_horovods_files_is_what_horovod_says(ranks):
    def ask():
        import horovod
        import horovod.tensorflow as hvd
        import tensorflow as tf

        return horovod.__version__, tf.__version__, hvd.mpi_built(), hvd.gloo_built(), bool(hvd.nccl_built())

    found = machine.find_horovod()
    version, tensorflow, mpi, gloo, nccl = ranks.run(ask)[0]
    assert (found.version, found.tensorflow) == (version, tensorflow)
    assert (found.mpi, found.gloo, found.nccl) == (mpi, gloo, nccl)


def test_no_horovod_is_none(monkeypatch):
    def missing(name):
        raise machine.importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(machine.importlib.metadata, "distribution", missing)
    assert machine.find_horovod() is None
