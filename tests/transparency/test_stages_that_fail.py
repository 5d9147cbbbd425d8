"""A step in stages on real ranks of which one raises, is killed, or is slow: a prompt and clear end, or just slower."""

from __future__ import annotations

import os
import re
import subprocess
import time
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import whaleish as wh
from tests.cluster.harness import ScriptResult, run_script
from tests.transparency.pipes import NoPipe, Pipe, make
from tests.transparency.precision import computing_in

pytestmark = pytest.mark.ranks

STEP = """
import os
import signal
import sys
import threading
import time

import numpy as np
import tensorflow as tf

import whaleish as wh

wh.init()
w, v = tf.Variable(tf.ones([4, 4])), tf.Variable(tf.ones([4, 4]))


@wh.function
def step(x):
    with tf.GradientTape() as tape:
        with wh.pipeline(4):
            with wh.stage():
                h = tf.matmul(x, w)
            with wh.stage():
                h = tf.debugging.check_numerics(tf.matmul(tf.sqrt(h), v), "not finite")  # the failing line
        loss = tf.reduce_mean(h)
    for variable, gradient in zip([w, v], tape.gradient(loss, [w, v])):
        variable.assign_sub(0.01 * gradient)
    return loss


good = np.ones([8, 4], "float32")
for _ in range(3):
    step(good)
print("began", time.time(), flush=True)
"""
RAISES = (
    STEP
    + """
bad = good.copy()
bad[5] = -1  # in the third micro-batch
step(bad)
"""
)
CAUGHT = (
    STEP
    + """
bad = good.copy()
bad[5] = -1
try:
    step(bad)
except Exception as error:
    print("caught", type(error).__name__, flush=True)
step(good)
print("went on", flush=True)
"""
)
KILLED = (
    STEP
    + """
if wh.rank() == 1:
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGKILL)).start()
while True:
    step(good)
"""
)
ENDS = (
    STEP
    + """
if wh.rank() == 1:
    time.sleep(0.3)  # the other one waits
    raise ValueError("between steps")
step(good)
"""
)


def ended(result: ScriptResult, within: float = 10) -> str:
    """What a job of which a rank failed has printed; `within`: seconds after the last good step."""
    assert not result.timed_out, result.output
    assert result.status != 0, result.output
    assert not result.survivors
    began = re.findall(r"began ([0-9.]+)", result.output)
    assert began, result.output
    seconds = time.time() - max(map(float, began))
    assert seconds <= within, f"it took {seconds:.1f} s after the last good step:\n{result.output}"
    return result.output


def test_a_stage_that_raises_ends_the_job_and_says_where() -> None:
    output = ended(run_script(2, RAISES, timeout=90))
    line = 1 + STEP.splitlines().index(next(line for line in STEP.splitlines() if "the failing line" in line))
    assert "'F1 on rank 1' of stage 1 failed at micro-batch 2" in output
    assert f"script.py:{line}" in output
    assert "not finite" in output


def test_a_failure_that_is_caught_ends_the_job_at_the_next_step() -> None:
    # The rank that caught it looks for the others at its next step, which takes a while.
    output = ended(run_script(2, CAUGHT, timeout=90), within=30)
    assert "went on" not in output
    assert "caught StageError" in output
    assert "no step can be run any more" in output


@pytest.mark.parametrize("kind", ["with stages", "without"])
def test_a_rank_that_ends_between_steps(kind: str) -> None:
    script = ENDS if kind == "with stages" else re.sub(r"wh\.(pipeline\(4\)|stage\(\))", "wh.local_statistics()", ENDS)
    output = ended(run_script(2, script, timeout=90))
    assert "ValueError: between steps" in output
    assert "rank 0 waited for another in the step 'step'. Likely causes: another rank raised an error" in output


def test_a_rank_that_is_killed_in_a_step() -> None:
    output = ended(run_script(2, KILLED, timeout=90))
    assert "rank 1" in output


def test_horovod_started_without_dynamic_process_sets() -> None:
    """Stages of two ranks among three need a set of their own, which the program's own `hvd.init()` has ruled out."""
    script = "import horovod.tensorflow as hvd\n\nhvd.init()\n" + STEP.replace(
        "h = tf.matmul(x, w)\n", "h = tf.matmul(x, w)\n            with wh.stage():\n                h = tf.exp(h)\n"
    )
    result = run_script(3, script, timeout=90, env={"HOROVOD_DYNAMIC_PROCESS_SETS": "0"})
    assert not result.timed_out
    assert result.status != 0
    assert 'hvd.init(process_sets="dynamic"), or start it by `whaleish run`' in result.output


def test_a_slow_rank_makes_the_step_slower_and_nothing_else(ranks: Any) -> None:
    """One stage's process stands still for a while, in the middle of steps."""
    for losses, expected, seconds in ranks.run(_with_a_pause, timeout=120):
        assert np.max(np.abs(np.subtract(losses, expected))) <= 1e-9
        assert seconds >= 1


def _with_a_pause() -> tuple[list[float], list[float], float]:

    wh.init()
    with computing_in("float64"):
        alone, _, plain_step = make("woven", NoPipe(2), "adamw")
        _, _, step = make("woven", Pipe(2, 4), "adamw")
        plain, compiled, rng = tf.function(plain_step), wh.function(step), np.random.default_rng(5)
        batches = [tuple(map(tf.constant, alone.draw(rng, 8))) for _ in range(30)]
        losses, expected = [], [float(plain(*batch)) for batch in batches]
        for number, batch in enumerate(batches):
            if number == 1:
                began = time.monotonic()
                if wh.rank() == 1:
                    pause = f"sleep 0.05; kill -STOP {os.getpid()}; sleep 1.2; kill -CONT {os.getpid()}"
                    subprocess.Popen(["sh", "-c", pause])
            losses.append(float(compiled(*batch)))
        return losses, expected, time.monotonic() - began
