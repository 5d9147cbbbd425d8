"""Laying a variable out really moves its memory: each part holds its share, and the storage in place is freed."""

from tests.fresh import run_fresh

SCRIPT = """
import gc, sys
import psutil
import tensorflow as tf
from whaleish import world
world.init(virtual_devices=4)
from whaleish.mesh import Axis, Mesh
from whaleish.sbp import B, parse_layout
from whaleish.state import lay_out, storage

MB = 1_000_000
layout, devices = parse_layout(sys.argv[1]), tuple(map(int, sys.argv[2].split(",")))
mesh = Mesh((Axis("a", len(devices)),), devices)
resident = lambda: psutil.Process().memory_info().rss / MB
fill = lambda megabytes: tf.fill([megabytes // 4, MB], 1.0)  # 4 MB a row

lay_out(tf.Variable(tf.ones([4, 4])), layout, mesh).handles  # warm up
before = resident()
v = tf.Variable(fill(200))
whole = resident() - before
lay_out(v, layout, mesh)
handles = {id(handle): handle for handle in storage(v).handles}.values()
parts = [tf.raw_ops.ReadVariableOp(resource=handle, dtype=v.dtype) for handle in handles]
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
lay_out(v, (B,), Mesh((Axis("a", 4),)))
print(whole, *held, laid_out, more, total)
"""


def measure(layout: str, devices: str) -> list[float]:
    return [float(word) for word in run_fresh(SCRIPT, layout, devices, timeout=120).split()]


def check(layout: str, devices: str, share: float) -> None:
    whole, *held, laid_out, more, total = measure(layout, devices)
    assert whole > 190
    assert sum(held) == 200
    assert max(held) <= share
    assert laid_out < whole + 50, "the parts were made beside the whole, not where it was"
    # The parts and 200 MB more: no room is taken up by the whole.
    assert laid_out + more < whole + 250, "the whole storage was not freed"
    assert total == 1_000_000


def test_rows():
    check("S(0)", "0,1,2,3", 52)


def test_columns():
    check("S(1)", "0,1,2,3", 52)


def test_a_whole_on_some_devices():
    check("B", "2,3", 200)
