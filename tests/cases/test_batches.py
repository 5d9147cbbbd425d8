"""How batches come to ranks: whole, as their own part, or from a distributed dataset; all mean the same global step."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import tensorflow as tf

import whaleish as wh
from tests.transparency.zoo import nested
from whaleish.dataset import distribute_dataset
from whaleish.mesh import Axis

pytestmark = pytest.mark.ranks
W = np.random.default_rng(1).normal(size=(4, 3)).astype("float32")
DATA = np.random.default_rng(2).normal(size=(14, 4)).astype("float32")


MESHES = {
    "d": wh.replica,
    "shares": lambda: wh.replica(shares=[3, 1, 2, 1]),
    "replica x split": lambda: nested(wh.replica(2), wh.split(dim=0)),
}


def make(inputs: str, mesh: str = "d"):
    w = tf.Variable(W)

    @wh.function(inputs=inputs)
    def step(x, y):
        with tf.GradientTape() as tape, MESHES[mesh]():
            rows = tf.reduce_sum(tf.square(tf.matmul(x, w) - y[:, None]), -1)
            loss = tf.reduce_mean(rows)
        w.assign_sub(0.01 * tape.gradient(loss, w))
        return loss, rows

    return w, step


def plain(sizes: list[int]) -> tuple[list[np.ndarray], np.ndarray]:
    w, rows, start = W.astype("float64"), [], 0
    for size in sizes:
        x, start = DATA[start : start + size].astype("float64"), start + size
        error = x @ w - x[:, :1]
        rows.append((error**2).sum(-1))
        w = w - 0.01 * 2 * x.T @ error / size
    return rows, w


def feed(sizes: list[int], how: str, mesh: str = "d") -> tuple[list[np.ndarray], list[float], np.ndarray]:
    w, step = make("local" if how == "local" else "global", mesh)
    if how == "dataset":
        bounds = np.cumsum([0, *sizes])
        sliced = [(DATA[a:b], DATA[a:b, 0]) for a, b in itertools.pairwise(bounds)]
        whole = tf.data.Dataset.from_generator(
            lambda: iter(sliced), output_signature=(tf.TensorSpec([None, 4]), tf.TensorSpec([None]))
        )
        made = [step(*batch) for batch in distribute_dataset(whole)]
    else:
        made, start = [], 0
        for size in sizes:
            x, start = DATA[start : start + size], start + size
            if how == "local":
                cuts = Axis("d", wh.size()).cuts(size)
                x = x[cuts[wh.rank()] : cuts[wh.rank() + 1]]
            made.append(step(tf.constant(x), tf.constant(x[:, 0])))
    return [rows.numpy() for _, rows in made], [float(loss) for loss, _ in made], wh.gather(w)


@pytest.mark.parametrize(("ranks", "sizes"), [(2, [6, 5, 3]), (4, [8, 5, 1]), (2, [1, 2])], indirect=["ranks"])
@pytest.mark.parametrize("how", ["global", "local", "dataset"])
def test_all_ways_are_the_same(ranks, sizes: list[int], how: str) -> None:
    rows, w = plain(sizes)
    for made, losses, weights in ranks.run(feed, sizes, how, timeout=60):
        for got, loss, expected in zip(made, losses, rows, strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-4)
            assert loss == pytest.approx(expected.mean(), rel=1e-5)
        np.testing.assert_allclose(weights, w, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("ranks", [4], indirect=True)
@pytest.mark.parametrize("mesh", ["shares", "replica x split"])
@pytest.mark.parametrize("how", ["global", "local", "dataset"])
def test_all_ways_are_the_same_on_other_meshes(ranks, how: str, mesh: str) -> None:
    """Rows are dealt out evenly, whatever the step's mesh is; the step then rearranges them."""
    rows, w = plain([8, 5, 1])
    for made, losses, weights in ranks.run(feed, [8, 5, 1], how, mesh, timeout=90):
        for got, loss, expected in zip(made, losses, rows, strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-4)
            assert loss == pytest.approx(expected.mean(), rel=1e-5)
        np.testing.assert_allclose(weights, w, rtol=1e-5, atol=1e-6)


def uneven_rows() -> str:
    _, step = make("local")
    x = tf.constant(DATA[: 2 + 2 * wh.rank()])
    try:
        step(x, x[:, 0])
    except ValueError as error:
        return str(error)
    return ""


def test_parts_that_do_not_fit(ranks) -> None:
    for message in ranks.run(uneven_rows, timeout=40):
        assert "inputs='local': the ranks passed [2, 4] rows" in message
        assert "inputs='global'" in message


def other_arrays() -> str:
    step = wh.function(lambda *arrays: tf.reduce_sum(arrays[0]), inputs="local")
    try:
        step(*[tf.ones([4, 2])] * (1 + 2 * wh.rank()))
    except wh.DisagreementError as error:
        return str(error)
    return ""


def test_parts_of_other_batches(ranks) -> None:
    for message in ranks.run(other_arrays, timeout=40):
        assert "the ranks passed [1, 3] arrays" in message


def shuffled_apart() -> str:
    """Each rank shuffles in its own way, and the same tensor is input and target."""
    data = tf.data.Dataset.range(16).map(lambda n: tf.fill([3], tf.cast(n, tf.float32)))
    data = data.shuffle(16, seed=wh.rank() + 1).map(lambda x: (x, x)).batch(8)

    @wh.function
    def step(x, y):
        return tf.reduce_mean(x * y)

    try:
        for batch in wh.distribute_dataset(data):
            step(*batch)
    except wh.DisagreementError as error:
        return str(error)
    return ""


def test_ranks_that_read_other_batches_are_found_when_tensors_are_equal(ranks) -> None:
    assert all("passed different batches" in message for message in ranks.run(shuffled_apart))
