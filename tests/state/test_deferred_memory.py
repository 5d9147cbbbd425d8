"""A deferred model costs no memory until its first step, and then its parts, and one variable while they are filled."""

import json
import re

import pytest

from tests.cluster.harness import run_script
from tests.fresh import run_fresh

TABLES, TABLE_MB = 10, 100
TOTAL_MB = TABLES * TABLE_MB
SLACK_MB = 250  # the compiled program, and what TensorFlow's allocator keeps over: it takes memory in growing regions
# Embeddings, as their gradients are small: what is measured are the weights, and the slots.
SCRIPT = f"""
import contextlib, json, pathlib, sys
import keras
import numpy as np
import tensorflow as tf
import whaleish as wh

if "virtual" in sys.argv:
    wh.init(virtual_devices=4)
else:
    wh.init()


def status(name):
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(name)).split()[1]) / 1000


def measured(function):
    # What it returns, and how many MB the process had more than before: at most, and in the end.
    pathlib.Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = status("VmRSS")
    result = function()
    return result, round(status("VmHWM") - before), round(status("VmRSS") - before)


def build(rows):
    keras.utils.set_random_seed(1)
    with wh.deferred() if "deferred" in sys.argv else contextlib.nullcontext():
        tables = [keras.layers.Embedding(rows, 1000) for _ in range({TABLES})]
        for table in tables:
            table.build()
    return tables


def make_step(tables):
    optimizer = keras.optimizers.SGD(1e-6, momentum=0.9 if "slots" in sys.argv else 0.0)

    @wh.function
    def step(x):
        with wh.split():
            with tf.GradientTape() as tape:
                loss = tf.add_n([tf.reduce_mean(table(x) ** 2) for table in tables])
            weights = [table.embeddings for table in tables]
            optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
        return loss

    return step


x = np.arange(64)
make_step(build(100))(x)  # warm up
tables, *built = measured(lambda: build({TABLE_MB * 250}))
step = make_step(tables)
_, *laid_out = measured(lambda: step.program_for(x))
loss, *ran = measured(lambda: float(step(x)))
in_parts = sum(table.embeddings.value.in_parts for table in tables)
rank = wh.rank()
print("measured " + json.dumps(dict(rank=rank, built=built, laid_out=laid_out, ran=ran, loss=loss, in_parts=in_parts)))
"""


def read(output):
    found = [json.loads(text) for text in re.findall(r"measured ({.*?})", output)]  # lines of ranks may run together
    return sorted(found, key=lambda one: one["rank"])


def alone(*words):
    return read(run_fresh(SCRIPT, "virtual", *words))[0]


def test_four_devices_of_one_process():
    found, plain = alone("deferred"), alone()
    assert found["in_parts"] == TABLES
    assert found["loss"] == plain["loss"]
    assert found["built"][0] < 0.05 * TOTAL_MB
    assert plain["built"][1] > 0.95 * TOTAL_MB
    # The parts; one variable whole, or in pieces; and the program.
    # Two variables more, as eager initializers take (`state/first.py`), would be too much.
    assert found["laid_out"][0] < TOTAL_MB + TABLE_MB + 175
    assert found["laid_out"][1] + found["ran"][0] < TOTAL_MB + TABLE_MB + SLACK_MB


@pytest.mark.ranks
def test_each_of_two_ranks_has_its_half_of_weights_and_slots():
    done = run_script(2, SCRIPT, "deferred", "slots", timeout=240)
    assert done.status == 0, done.output
    ranks = read(done.output)
    assert [one["rank"] for one in ranks] == [0, 1]
    for one in ranks:
        assert one["in_parts"] == TABLES
        assert one["built"][0] < 0.05 * TOTAL_MB
        # Half of the weights, and half of as many slots. Slots that were whole before would be 500 MB more (1722).
        assert one["laid_out"][0] < TOTAL_MB + TABLE_MB + SLACK_MB
