"""`whaleish run` on real ranks: what it prints, the status it passes on, and that nothing survives."""

import itertools
import re
import signal
import subprocess
import sys
import time

import pytest

from tests.cluster.harness import ROOT, run_script
from tests.products import either
from whaleish import cli
from whaleish.launch.run import environment

START = """
import os, sys, time
import horovod.tensorflow as hvd, tensorflow as tf
hvd.init()
def add():
    return hvd.allreduce(tf.constant(hvd.rank() + 1.0), op=hvd.Sum, name="add")
total = add()
sys.stdout.write(f"up {hvd.rank()} total {float(total)}\\n"); sys.stdout.flush()
"""
HAPPY = (
    START
    + """
sys.stdout.write(f"args {sys.argv[1:]}\\n")
"""
)
FAILING = (
    START
    + """
if hvd.rank() == 1:
    ACT
add()
time.sleep(600)
"""
)


@pytest.mark.parametrize("engine", ["mpi", "gloo"])
def test_ranks_work_together_on_both_engines(engine):
    result = run_script(2, HAPPY, "--lr", "0.1", engine_name=engine)
    assert result.status == 0, result.output
    assert f"whaleish run: horovodrun -np 2 --{engine}" in result.output
    assert "up 0 total 3.0" in result.output
    assert "up 1 total 3.0" in result.output
    assert result.output.count("args ['--lr', '0.1']") == 2


def test_more_ranks_than_cores():
    result = run_script(4, HAPPY)
    assert result.status == 0, result.output
    assert result.output.count("total 10.0") == 4


FAILURES = {
    "raises": "raise ValueError('boom')",
    "exits": "sys.exit(3)",
    "exits-at-once": "os._exit(3)",
    "is-killed": "os.kill(os.getpid(), 9)",
}


# Each start costs ten seconds of two cores, so by default each failure is seen on one engine.
@pytest.mark.parametrize(
    ("engine", "act"),
    either(
        [("mpi", "raises"), ("gloo", "exits"), ("gloo", "exits-at-once"), ("mpi", "is-killed")],
        itertools.product(["mpi", "gloo"], FAILURES),
    ),
)
def test_when_a_rank_fails_everything_ends_in_time_and_the_output_names_it(engine, act):
    result = run_script(2, FAILING.replace("ACT", FAILURES[act]), engine_name=engine, timeout=90)
    assert not result.timed_out, result.output
    assert result.status != 0
    assert not result.survivors
    up = result.output.index("up ")
    assert re.search(r"whaleish run: the ranks ended with status \d+", result.output[up:])
    if act == "raises":
        assert re.search(r"\[(1,)?1\]<stderr>:.*boom", result.output)


@pytest.mark.parametrize(
    ("engine", "number"),
    either(
        [("mpi", signal.SIGINT), ("gloo", signal.SIGTERM)],
        itertools.product(["mpi", "gloo"], [signal.SIGINT, signal.SIGTERM]),
    ),
)
def test_being_interrupted_ends_everything(engine, number):
    seconds = []

    def interrupt(process):
        for line in process.stdout:
            if "up 0" in line:
                break
        seconds.append(-time.monotonic())
        process.send_signal(number)
        process.wait(30)
        seconds[0] += time.monotonic()

    result = run_script(2, FAILING.replace("ACT", "pass"), engine_name=engine, after_start=interrupt)
    assert result.status == 128 + number
    assert not result.survivors
    assert seconds[0] < 10


def test_programs_that_are_not_python_run_too(tmp_path):
    script = tmp_path / "job.sh"
    script.write_text("#!/bin/sh\necho job $1\nexit 5\n")
    script.chmod(0o755)
    command = [sys.executable, "-m", "whaleish.cli", "run", "-np", "2", "-q", str(script), "x"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT, stdin=subprocess.DEVNULL)
    assert run.returncode == 5
    assert run.stdout.count("job x") >= 1
    assert "whaleish run:" not in run.stderr


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["run", "-np", "2"], "no program was given; for instance: whaleish run -np 2 train.py"),
        (["run", "-np", "0", "train.py"], "-np 0 was given"),
        (["run", "-np", "2", "--engine", "x", "train.py"], "--engine x was given; allowed are auto, mpi, gloo"),
    ],
)
def test_bad_input_is_one_line_and_status_1(arguments, text, capsys):
    assert cli.main(arguments) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("whaleish run: ")
    assert text in line


def test_a_missing_command_is_a_usage_error(capsys):
    with pytest.raises(SystemExit, match="2"):
        cli.main([])
    assert "required: command" in capsys.readouterr().err


def test_process_sets_can_be_made_later_unless_the_user_says_no(monkeypatch):
    """Also by a program that calls `hvd.init()` itself: Horovod asks the environment."""
    monkeypatch.delenv("HOROVOD_DYNAMIC_PROCESS_SETS", raising=False)
    assert environment()["HOROVOD_DYNAMIC_PROCESS_SETS"] == "1"
    monkeypatch.setenv("HOROVOD_DYNAMIC_PROCESS_SETS", "0")
    assert environment()["HOROVOD_DYNAMIC_PROCESS_SETS"] == "0"
