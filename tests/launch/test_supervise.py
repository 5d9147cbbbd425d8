"""However a command ends, nothing that it started is left."""

import os
import pathlib
import signal
import subprocess
import sys
import time

import psutil
import pytest

from whaleish.launch import supervise

# A launcher that turns into a shell which starts a grandchild in a session of its own, as horovodrun over MPI does.
GRANDCHILD = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); {act}; time.sleep(600)"
LAUNCHER = 'setsid {python} -c "{grandchild}" {file} & while ! [ -s {file} ]; do sleep 0.05; done; {then}'


def start(tmp_path, then, act="pass"):
    file = tmp_path / "pid"
    shell = LAUNCHER.format(python=sys.executable, grandchild=GRANDCHILD.format(act=act), file=file, then=then)
    code = (
        "import os, sys; from whaleish.launch.supervise import supervise; sys.exit(supervise(sys.argv[1:], os.environ))"
    )
    supervisor = subprocess.Popen([sys.executable, "-c", code, "sh", "-c", shell])
    deadline = time.monotonic() + 60
    while not (file.exists() and file.read_text()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return supervisor, psutil.Process(int(file.read_text()))


@pytest.mark.parametrize(("then", "status"), [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137)])
def test_the_status_is_passed_on_and_what_is_left_is_ended(tmp_path, then, status):
    supervisor, grandchild = start(tmp_path, then)
    assert supervisor.wait(30) == status
    assert not supervise.lives(grandchild)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_end_everything(tmp_path, number):
    supervisor, grandchild = start(tmp_path, "wait")
    supervisor.send_signal(number)
    assert supervisor.wait(30) == 128 + number
    assert not supervise.lives(grandchild)


def test_a_process_that_ignores_the_request_is_killed(tmp_path):
    supervisor, grandchild = start(tmp_path, "wait", act="import signal; signal.signal(15, signal.SIG_IGN)")
    time.sleep(0.5)
    supervisor.terminate()
    assert supervisor.wait(30) == 128 + signal.SIGTERM
    assert not supervise.lives(grandchild)


def test_a_second_interrupt_does_not_cut_the_clearing_up_short(tmp_path):
    supervisor, grandchild = start(tmp_path, "wait", act="import signal; signal.signal(15, signal.SIG_IGN)")
    time.sleep(0.5)
    supervisor.send_signal(signal.SIGINT)
    time.sleep(0.2)
    supervisor.send_signal(signal.SIGINT)
    assert supervisor.wait(30) == 128 + signal.SIGINT
    assert not supervise.lives(grandchild)


def test_a_command_that_is_not_there_raises():
    with pytest.raises(FileNotFoundError):
        supervise.supervise([str(pathlib.Path("/no/such/command"))], os.environ)
