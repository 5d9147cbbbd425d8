"""A process's part of a dataset: every global batch, cut where the axis cuts it, and never cut again."""

import numpy as np
import pytest
import tensorflow as tf

from whaleish import dataset as dataset_
from whaleish import world
from whaleish.dataset import LocalPart, distribute_dataset
from whaleish.mesh import Axis


@pytest.fixture(autouse=True)
def _devices():
    world.init(virtual_devices=4)


def batches(rows: int, batch: int) -> tf.data.Dataset:
    data = {"x": tf.reshape(tf.range(rows * 3), [rows, 3]), "y": tf.range(rows)}
    return tf.data.Dataset.from_tensor_slices(data).batch(batch)


def test_in_one_process_it_is_the_dataset():
    whole = [element["y"].numpy().tolist() for element in distribute_dataset(batches(7, 3))]
    assert whole == [[0, 1, 2], [3, 4, 5], [6]]


@pytest.mark.parametrize("axis", [Axis("data", 4), Axis("data", 3), Axis("data", 2, (3, 1))])
@pytest.mark.parametrize(("rows", "batch"), [(8, 4), (9, 4), (10, 5)])
def test_parts_make_up_the_global_batches(axis, rows, batch):
    parts = [list(distribute_dataset(batches(rows, batch), axis=axis, position=k)) for k in range(axis.size)]
    for number, whole in enumerate(batches(rows, batch)):
        for key in ("x", "y"):
            cut = [part[number][key] for part in parts]
            assert all(isinstance(part, LocalPart) for part in cut)
            assert {part.global_shape for part in cut} == {tuple(whole[key].shape)}
            assert len({part.fingerprint for part in cut}) == 1
            assert tuple(part.start for part in cut) == axis.cuts(len(whole[key]))[:-1]
            np.testing.assert_array_equal(np.concatenate([part.tensor for part in cut]), whole[key])


def test_structures_scalars_and_length():
    data = tf.data.Dataset.from_tensors(((tf.zeros([4, 2]), tf.constant(3.0)), tf.constant(["a", "b", "c", "d"])))
    part = distribute_dataset(data.repeat(2), axis=Axis("data", 2), position=1)
    assert len(part) == 2
    assert part.element_spec == data.element_spec
    (x, scalar), words = next(iter(part))
    assert x.tensor.shape == (2, 2)
    assert scalar.numpy() == 3
    assert words.tensor.numpy().tolist() == [b"c", b"d"]
    assert tf.nest.flatten({"a": x}) == [x]


def test_other_batches_have_other_fingerprints():
    for dtype in ("float32", "bfloat16", "bool", "int64", "string"):
        values = tf.strings.as_string([1, 2]) if dtype == "string" else tf.cast([1, 0], dtype)
        assert dataset_._hash(values).numpy() != dataset_._hash(values[::-1]).numpy()


def test_what_cannot_be_divided_is_refused():
    ragged = tf.data.Dataset.from_tensors(tf.ragged.constant([[1], [2, 3]]))
    with pytest.raises(TypeError, match="to_tensor"):
        distribute_dataset(ragged, axis=Axis("data", 2))
    uneven = tf.data.Dataset.from_tensors((tf.zeros([4]), tf.zeros([3])))
    with pytest.raises(tf.errors.InvalidArgumentError, match="same number of rows"):
        list(distribute_dataset(uneven, axis=Axis("data", 2)))
    part = distribute_dataset(batches(4, 2), axis=Axis("data", 2))
    with pytest.raises(RuntimeError, match="batch by batch"):
        tf.function(lambda: [x for x in part], autograph=False)()
