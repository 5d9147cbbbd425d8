"""Saves in a thread: what they write are the values of the moment, whatever steps do then."""

import gc
import logging
import os
import resource
import time

import keras
import numpy as np
import pytest
import tensorflow as tf

import whaleish as wh
from whaleish.checkpoint import CheckpointError
from whaleish.mesh import Axis, Mesh
from whaleish.sbp import B, S
from whaleish.state import lay_out

MESH = Mesh((Axis("a", 4),))
LAYOUTS = {"in place": None, "split": (S(0),), "by columns": (S(1),), "whole": (B,)}


def changes(variable):
    """Ways in which a program or a step changes a variable, some within its memory."""
    shape = variable.shape
    rows = tf.IndexedSlices(tf.ones([2, shape[1]]), [0, 5])
    step = wh.function(lambda x: variable.assign_add(x))
    plain = tf.function(lambda x: variable.assign_sub(x))
    optimizer = keras.optimizers.Adam(0.1)
    return [
        lambda: variable.assign(tf.zeros(shape)),
        lambda: variable.assign_add(tf.ones(shape)),
        lambda: variable.scatter_add(rows),
        lambda: variable.scatter_update(rows),
        lambda: step(tf.ones(shape)),
        lambda: plain(tf.ones(shape)),
        lambda: optimizer.apply_gradients([(tf.ones(shape), variable)]),
        lambda: (
            tf.raw_ops.ResourceApplyGradientDescent(var=variable.handle, alpha=tf.constant(1.0), delta=tf.ones(shape))
            if not variable.in_parts
            else None
        ),
    ]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_later_changes_are_not_in_it(tmp_path, layout) -> None:
    value = tf.random.stateless_normal([600, 2000], [1, 2])
    for number in range(8):
        variable = tf.Variable(value)
        variable.scatter_add(tf.IndexedSlices(tf.zeros([1, 2000]), [3]))  # from when on reads may be copies
        if LAYOUTS[layout] is not None:
            lay_out(variable, LAYOUTS[layout], MESH)
        change = changes(variable)[number]
        saving = wh.checkpoint.save(tmp_path, {"v": variable}, asynchronous=True)
        change()
        change()
        saving.wait()
        found = tf.train.load_checkpoint(saving.path).get_tensor("v/.ATTRIBUTES/VARIABLE_VALUE")
        np.testing.assert_array_equal(found, value, err_msg=f"change {number}")


def test_one_after_the_other(tmp_path) -> None:
    v = tf.Variable(tf.zeros([1000, 1000]))
    savings = []
    for number in range(4):
        v.assign(tf.fill([1000, 1000], float(number)))
        savings.append(wh.checkpoint.save(tmp_path, {"v": v}, keep=4, asynchronous=True))
        assert repr(savings[-1]).endswith(f"as {tmp_path}/ckpt-{number + 1}>")
    v.assign(v * 0 - 1)
    wh.checkpoint.restore(tmp_path, {"v": v})  # waits for the last
    assert np.unique(v.numpy()).tolist() == [3.0]
    assert [saving.wait() for saving in savings] == [f"{tmp_path}/ckpt-{number}" for number in range(1, 5)]


def test_an_error_is_told_at_the_next_save_once(tmp_path, caplog) -> None:
    v = tf.Variable(tf.zeros([1000]))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with caplog.at_level(logging.ERROR, "whaleish"):
            saving = wh.checkpoint.save(tmp_path, {"v": v}, asynchronous=True)
            while not saving.done:
                time.sleep(0.01)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "File too large" in caplog.text
    with pytest.raises(CheckpointError, match="File too large"):
        wh.checkpoint.save(tmp_path, {"v": v})
    assert os.listdir(tmp_path) == []
    assert wh.checkpoint.save(tmp_path, {"v": v}).path == f"{tmp_path}/ckpt-1"
    with pytest.raises(CheckpointError, match="File too large"):
        saving.wait()


def test_values_are_let_go(tmp_path) -> None:
    import psutil

    def resident():
        gc.collect()
        return psutil.Process().memory_info().rss / 1e6

    v = tf.Variable(tf.zeros([5000, 5000]))
    wh.checkpoint.save(tmp_path, {"v": v}, asynchronous=True).wait()
    before = resident()
    savings = []
    for _ in range(4):
        savings.append(wh.checkpoint.save(tmp_path, {"v": v}, asynchronous=True))
        v.assign_add(tf.ones([5000, 5000]))
        savings[-1].wait()
    assert resident() - before < 250
