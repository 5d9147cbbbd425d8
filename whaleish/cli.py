"""The command line: `whaleish run | doctor | install-horovod`."""

from __future__ import annotations

import argparse
import shlex
import signal
import sys
from collections.abc import Sequence

from whaleish.launch.machine import LaunchError


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit status. What a user can put right is one line on stderr, and status 1."""
    options = parser().parse_args(argv)
    try:
        status: int = options.action(options)
    except LaunchError as error:
        print(f"whaleish {options.name}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return status


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="whaleish", description="Train TensorFlow and Keras models on many devices.")
    commands = top.add_subparsers(dest="name", required=True, metavar="command")

    run = commands.add_parser(
        "run",
        help="start a program on several ranks",
        description="horovodrun with the engine and flags that suit this machine; the command is printed, "
        "its exit status passed on, and however it ends no process is left.",
        usage="whaleish run -np RANKS [options] train.py [arguments]",
    )
    run.add_argument("-np", "--ranks", type=int, required=True, help="number of processes")
    run.add_argument("-H", "--hosts", help="host:slots,host:slots; default: this host alone")
    run.add_argument("--engine", default="auto", help="auto, mpi or gloo (default: what suits this machine)")
    run.add_argument("--horovodrun-args", default="", metavar="TEXT", help="further options for horovodrun")
    run.add_argument("-q", "--quiet", action="store_true", help="do not print the command")
    run.add_argument("command", nargs=argparse.REMAINDER, help="a .py file or a program, and its arguments")
    run.set_defaults(action=_run)

    doctor = commands.add_parser(
        "doctor",
        help="check versions, Horovod and this machine",
        description="Checks versions, devices, Horovod's build, two real ranks, and known traps of this machine; "
        "each finding with its remedy. The exit status is 1 if something does not work.",
    )
    doctor.add_argument("-np", "--ranks", type=int, default=2, help="number of processes you mean to run (default 2)")
    doctor.set_defaults(action=_doctor)

    install = commands.add_parser(
        "install-horovod",
        help="build, cache, install and prove Horovod for the TensorFlow that is here",
        description="Builds the unmodified release of Horovod, keeps the wheel in ~/.cache/whaleish (or "
        "$WHALEISH_CACHE) by the versions it was built for, installs it, and proves it on two real ranks.",
    )
    install.add_argument("--without-mpi", action="store_true", help="Gloo alone; MPI is quicker on one host")
    install.add_argument(
        "--nccl", action="store_true", help="collectives of GPUs by NCCL, as Horovod documents it (untested)"
    )
    install.add_argument("--rebuild", action="store_true", help="build again although the wheel is cached")
    install.add_argument("--no-check", action="store_true", help="skip the proof on two ranks")
    install.set_defaults(action=_install)
    return top


def _run(options: argparse.Namespace) -> int:
    from whaleish.launch import run

    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    return run.run(
        options.ranks,
        command,
        hosts=options.hosts,
        engine_name=options.engine,
        extra=shlex.split(options.horovodrun_args),
        quiet=options.quiet,
    )


def _doctor(options: argparse.Namespace) -> int:
    from whaleish.launch import doctor

    return doctor.doctor(options.ranks, say=print)


def _install(options: argparse.Namespace) -> int:
    from whaleish.launch import install, recipe

    chosen = recipe.Options(mpi=not options.without_mpi, nccl=options.nccl)

    # So that being told to end takes the compilers along, as Ctrl-C does.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))

    def say(text: str) -> None:
        print(f"whaleish install-horovod: {text}", flush=True)

    return install.install(chosen, rebuild=options.rebuild, prove=not options.no_check, say=say)


if __name__ == "__main__":
    sys.exit(main())
