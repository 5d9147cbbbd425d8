"""Laying a variable out really divides its memory: each part holds its share, and the whole is freed."""

import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[2]
SCRIPT = """
import gc, sys
import psutil
import tensorflow as tf
from whaleish import world
world.init(virtual_devices=4)
from whaleish.mesh import Axis, Mesh
from whaleish.sbp import B, S
from whaleish.state import lay_out, storage

MB = 1_000_000
mesh = Mesh((Axis("a", 4),))
dim = int(sys.argv[1])
resident = lambda: psutil.Process().memory_info().rss / MB
fill = lambda megabytes: tf.fill([megabytes // 4, MB], 1.0)  # 4 MB a row

lay_out(tf.Variable(tf.ones([4, 4])), (S(dim),), mesh).handles  # warm up
before = resident()
v = tf.Variable(fill(200))
whole = resident() - before
lay_out(v, (S(dim),), mesh)
parts = [tf.raw_ops.ReadVariableOp(resource=h, dtype=v.dtype) for h in storage(v).handles]
held = [int(tf.size(part)) * 4 / MB for part in parts]
del parts
gc.collect()
laid_out = resident() - before
# TensorFlow's allocator keeps what is freed and hands it out again.
others = [fill(100), fill(100)]
more = resident() - before - laid_out
del others
peak = resident() - before
total = float(tf.reduce_sum(v[0]))
lay_out(v, (B,), mesh)
print(whole, *held, laid_out, more, total)
"""


def measure(dim: int) -> list[float]:
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(dim)], capture_output=True, text=True, cwd=ROOT, env=environment, timeout=120
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return [float(word) for word in done.stdout.split()]


def check(dim: int) -> None:
    whole, *held, laid_out, more, total = measure(dim)
    assert whole > 190
    assert sum(held) == 200
    assert max(held) <= 52
    assert laid_out < whole + 50, "the parts were made beside the whole, not where it was"
    # The parts and 200 MB more: no room is taken up by the whole.
    assert laid_out + more < whole + 250, "the whole storage was not freed"
    assert total == 1_000_000


def test_rows():
    check(0)


def test_columns():
    check(1)
