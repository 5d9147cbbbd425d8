"""The program in docs/checkpoints.md runs as it stands there, and what the page says of seeds and metrics holds."""

import keras
import numpy as np
import tensorflow as tf

import whaleish as wh
from tests.test_readme import ROOT, blocks, output_of


def test_the_program_saves_and_goes_on(tmp_path) -> None:
    page = ROOT / "docs" / "checkpoints.md"
    (program,) = blocks(page, "python")
    assert output_of(program, "example.py", tmp_path) == blocks(page)[0].splitlines()


def test_dropout_and_metrics_go_on(tmp_path) -> None:
    def make():
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16), keras.layers.Dropout(0.5, seed=3)])
        metric = keras.metrics.Mean()

        @wh.function
        def step(x):
            with wh.split():
                y = model(x, training=True)
            metric.update_state(y)
            return tf.reduce_sum(y)

        return {"model": model, "state": model.non_trainable_variables, "metric": metric.variables}, metric, step

    x = np.ones([4, 8], "float32")
    objects, metric, step = make()
    step(x)
    wh.checkpoint.save(tmp_path, objects)
    expected = [float(step(x)) for _ in range(3)], float(metric.result())
    objects, metric, step = make()
    wh.checkpoint.restore(tmp_path, objects)
    found = [float(step(x)) for _ in range(3)], float(metric.result())
    np.testing.assert_allclose(np.hstack(found), np.hstack(expected), rtol=1e-5)
