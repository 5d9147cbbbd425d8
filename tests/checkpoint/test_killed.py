"""Writers that are killed at any moment, and readers meanwhile: the checkpoint before, or the new one, whole."""

import os
import random
import signal
import subprocess
import sys
import textwrap
import time

import numpy as np
import psutil
import pytest
import tensorflow as tf

import whaleish as wh
from tests.cluster.harness import ROOT, rank_environment, run_script

SIZE = 40_000  # elements: a save takes long enough to be hit
KILLS = 21

WRITER = textwrap.dedent(
    """
    import os, sys
    import numpy as np
    import tensorflow as tf
    import whaleish as wh
    from whaleish.mesh import Axis, Mesh
    from whaleish.sbp import S
    from whaleish.state import lay_out

    folder, size, processes = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])

    def save_for_ever():
        wh.init(virtual_devices=2)
        variables = [tf.Variable(tf.zeros([size])) for _ in range(5)]
        for variable in variables:
            lay_out(variable, (S(0),), Mesh((Axis("a", 2),)))
        number = 0
        print("ready", flush=True)
        sys.stdin.readline()
        while True:
            number += 1
            for variable in variables:
                variable.assign(tf.fill([size], float(number)))
            wh.checkpoint.save(folder, {"v": variables}, keep=1, asynchronous=number % 2 == 0)

    # TensorFlow is loaded once; what is killed are forks of this process, which has not started it yet.
    for _ in range(processes):
        child = os.fork()
        if child == 0:
            save_for_ever()
        print("child", child, flush=True)
        os.waitpid(child, 0)
    """
)


def check(folder) -> float:
    """All values of the latest checkpoint are of the same save; which one."""
    variables = [tf.Variable(tf.zeros([SIZE])) for _ in range(5)]
    wh.checkpoint.restore(folder, {"v": variables})
    (number,) = {value for variable in variables for value in np.unique(variable.numpy())}
    return float(number)


def test_killed_at_twenty_moments_and_read_meanwhile(tmp_path) -> None:
    rng, reads, stopped = random.Random(1), 0, set()
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path), str(SIZE), str(KILLS)],
        env=rank_environment(),
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        for _ in range(KILLS):
            child = int(writer.stdout.readline().split()[1])
            assert writer.stdout.readline() == "ready\n"
            writer.stdin.write("go\n")
            writer.stdin.flush()
            before, limit, until = tf.train.latest_checkpoint(tmp_path), time.monotonic() + 20, None
            while until is None or time.monotonic() < until:
                assert time.monotonic() < limit, "the writer got nowhere"
                if before is not None:
                    check(tmp_path)  # while it writes
                    reads += 1
                if until is None and tf.train.latest_checkpoint(tmp_path) != before:
                    until = time.monotonic() + 0.15 * rng.random()
            os.kill(child, signal.SIGKILL)
            psutil.wait_procs([psutil.Process(child)] if psutil.pid_exists(child) else [], timeout=5)
            path = tf.train.latest_checkpoint(tmp_path)
            assert check(tmp_path) >= 1
            found = tf.train.load_checkpoint(path)
            assert len(np.unique(found.get_tensor("v/0/.ATTRIBUTES/VARIABLE_VALUE"))) == 1
            stopped.add(any(name.startswith(".ckpt") for name in os.listdir(tmp_path)))
        writer.wait(timeout=20)
    finally:
        for process in psutil.Process(writer.pid).children(recursive=True) if writer.poll() is None else []:
            process.kill()
        writer.kill()
        writer.wait()
    assert reads > KILLS
    assert True in stopped, "no writer was killed in the middle"
    # What the last one left is removed by the next save.
    wh.checkpoint.save(tmp_path, {"v": tf.Variable(1.0)})
    assert len(os.listdir(tmp_path)) == 3


RANKS = textwrap.dedent(
    """
    import os, signal, sys, time
    import numpy as np
    import tensorflow as tf
    import whaleish as wh
    from whaleish.mesh import Axis, Mesh
    from whaleish.sbp import S
    from whaleish.state import lay_out

    wh.init()
    folder, victim = sys.argv[1], int(sys.argv[2])
    v = tf.Variable(tf.ones([1000, 1000]))
    lay_out(v, (S(0),), Mesh((Axis("a", 2),)))
    wh.checkpoint.save(folder, {"v": v})
    v.assign(tf.fill([1000, 1000], 2.0))
    saving = wh.checkpoint.save(folder, {"v": v}, asynchronous=True)
    if wh.rank() == victim:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        saving.wait()
        print("written", flush=True)
    except wh.checkpoint.CheckpointError as error:
        print("said:", error, flush=True)
    """
)


@pytest.mark.ranks
@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_that_is_killed(tmp_path, victim) -> None:
    ended = run_script(2, RANKS, str(tmp_path), str(victim), timeout=90)
    assert not ended.timed_out
    assert ended.status != 0
    v = tf.Variable(tf.zeros([1000, 1000]))
    wh.checkpoint.restore(tmp_path, {"v": v})
    assert np.unique(v.numpy()).tolist() in ([1.0], [2.0])


EXITS = textwrap.dedent(
    """
    import sys
    import tensorflow as tf
    import whaleish as wh

    wh.init()
    v = tf.Variable(tf.ones([3000, 3000]))
    saving = wh.checkpoint.save(sys.argv[1], {"v": v}, asynchronous=True)
    assert not saving.done
    """
)


def test_the_interpreter_waits_at_its_end(tmp_path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", EXITS, str(tmp_path)], env=rank_environment(), cwd=ROOT, check=False, capture_output=True
    )
    assert ended.returncode == 0, ended.stderr.decode()[-2000:]
    assert tf.train.latest_checkpoint(tmp_path) == str(tmp_path / "ckpt-1")
