"""The choice of engine and flags, on machines that are only described."""

import re
from dataclasses import replace

import pytest

from whaleish.launch import engine
from whaleish.launch.machine import Horovod, LaunchError, Machine, Mpi

FULL = Horovod("0.28.1", "2.21.0", mpi=True, gloo=True, nccl=False)
OPEN_MPI_4, OPEN_MPI_5 = Mpi("/bin/mpirun", (4, 1, 8)), Mpi("/bin/mpirun", (5, 0, 11))
MACHINE = Machine(cores=4, root=False, loopback_mtu=65536, mpi=OPEN_MPI_4, horovod=FULL)


def choose(machine=MACHINE, ranks=2, command=("train.py", "--x"), **options):
    return engine.choose(machine, ranks, command, python="/bin/python", **options)


def test_one_host_with_mpi_takes_mpi_and_yields():
    launch = choose()
    assert launch.engine == "mpi"
    flags = "--mpi-args=--mca mpi_yield_when_idle 1"
    expected = ("horovodrun", "-np", "2", "--mpi", "-H", "localhost:2", flags, "/bin/python", "train.py", "--x")
    assert launch.argv == expected
    assert launch.notes == ()


def test_more_ranks_than_cores_oversubscribe_and_say_so():
    launch = choose(ranks=8)
    assert "--mpi-args=--oversubscribe --mca mpi_yield_when_idle 1" in launch.argv
    assert launch.notes == ("8 ranks share 4 cores",)


def test_nccl_ranks_may_spin():
    launch = choose(replace(MACHINE, horovod=replace(FULL, nccl=True)))
    assert not any(word.startswith("--mpi-args") for word in launch.argv)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"mpi": None}, "no mpirun"),
        ({"mpi": OPEN_MPI_5}, r"Open MPI 5\.0\.11"),
        ({"mpi": Mpi("/bin/mpirun", None)}, "not Open MPI"),
        ({"horovod": replace(FULL, mpi=False)}, "built without MPI"),
    ],
)
def test_without_a_usable_mpi_it_is_gloo_with_the_reason_and_the_loopback_trap(change, why):
    launch = choose(replace(MACHINE, **change))
    assert launch.argv[:4] == ("horovodrun", "-np", "2", "--gloo")
    reason, trap = launch.notes
    assert re.search(why, reason)
    assert "ip link set lo mtu 16384" in trap
    with pytest.raises(LaunchError, match=why):
        choose(replace(MACHINE, **change), engine="mpi")


def test_a_safe_loopback_is_not_mentioned():
    assert choose(replace(MACHINE, loopback_mtu=16384), engine="gloo").notes == ()
    assert choose(replace(MACHINE, loopback_mtu=None), engine="gloo").notes == ()


def test_several_hosts_take_gloo_and_no_flags_of_this_host():
    launch = choose(ranks=8, hosts="a:4,b:4")
    assert launch.argv[:6] == ("horovodrun", "-np", "8", "--gloo", "-H", "a:4,b:4")
    assert launch.notes == ()
    assert choose(replace(MACHINE, horovod=replace(FULL, gloo=False)), hosts="a:1,b:1").engine == "mpi"


def test_programs_that_are_not_python_files_run_as_they_are():
    assert choose(command=("python3", "train.py")).argv[-2:] == ("python3", "train.py")


def test_extra_options_stand_before_the_program():
    argv = choose(extra=["--timeline-filename", "t.json"]).argv
    assert argv[-5:] == ("--timeline-filename", "t.json", "/bin/python", "train.py", "--x")


@pytest.mark.parametrize(
    ("machine", "options", "text"),
    [
        (MACHINE, {"ranks": 0}, "-np 0 was given; at least 1"),
        (MACHINE, {"command": ()}, "no program was given"),
        (MACHINE, {"engine": "nccl"}, "--engine nccl was given; allowed are auto, mpi, gloo"),
        (replace(MACHINE, horovod=None), {}, "Horovod is not installed; run `whaleish install-horovod`"),
        (replace(MACHINE, horovod=replace(FULL, gloo=False)), {"engine": "gloo"}, "built without Gloo"),
        (replace(MACHINE, horovod=replace(FULL, gloo=False), mpi=None), {}, "no engine works.*mpirun.*Gloo"),
    ],
)
def test_what_cannot_be_done_says_what_to_do(machine, options, text):
    with pytest.raises(LaunchError, match=text):
        choose(machine, **options)
