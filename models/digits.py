"""Handwritten digits: a convolutional backbone on `replica`, a classifier on `split`, and the same step on one device.

Alone, on four virtual devices of this process:       python models/digits.py --virtual-devices 4
On real ranks, one device each (needs Horovod):       whaleish run -np 2 models/digits.py
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from sklearn.datasets import load_digits

import whaleish as wh
from whaleish.report.shares import shares_text

BATCH = 64
# Double precision, so that what differs from one device at the end is rounding, not what training makes of it.
keras.backend.set_floatx("float64")


def load() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """scikit-learn's 1,797 images of 8 x 8 pixels, shuffled; the last 297 are kept for the test."""
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(images))
    images = (images[order] / 16.0).reshape(-1, 8, 8, 1)
    labels = labels[order].astype("int64")
    return images[:1500], labels[:1500], images[1500:], labels[1500:]


class Model:
    """The parts of the model, made from one seed so that two of them begin equal. It knows nothing of devices."""

    def __init__(self) -> None:
        keras.utils.set_random_seed(7)
        layers = keras.layers
        self.backbone = keras.Sequential(
            [
                keras.Input((8, 8, 1)),
                layers.Conv2D(32, 3, padding="same", use_bias=False),
                layers.BatchNormalization(),
                layers.Activation("relu"),
                layers.Conv2D(64, 3, strides=2, padding="same", activation="relu"),
                layers.Flatten(),
                layers.Dropout(0.2, seed=11),
            ]
        )
        self.classifier = keras.Sequential(
            [keras.Input((1024,)), layers.Dense(512, activation="relu"), layers.Dense(10)]
        )
        self.optimizer = keras.optimizers.SGD(0.05, momentum=0.9)
        self.variables = self.backbone.trainable_variables + self.classifier.trainable_variables
        self.optimizer.build(self.variables)
        self.loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def train_step(self, images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            with wh.replica():
                features = self.backbone(images, training=True)
            with wh.split():
                loss = self.loss(labels, self.classifier(features))
        gradients = tape.gradient(loss, self.variables)
        self.optimizer.apply_gradients(zip(gradients, self.variables, strict=True))
        return loss

    def predict(self, images: np.ndarray) -> np.ndarray:
        return np.argmax(self.classifier(self.backbone(images, training=False)).numpy(), axis=-1)


def train(step: Callable[..., Any], images: np.ndarray, labels: np.ndarray, steps: int, title: str) -> list[float]:
    """Runs a step over shuffled batches; returns its losses. Ranks draw the same batches from one seed."""
    random = np.random.default_rng(1)
    columns = (TextColumn(title), BarColumn(), MofNCompleteColumn(), TextColumn("loss {task.fields[loss]:.4f}"))
    losses = []
    with Progress(*columns, TimeRemainingColumn(), disable=not wh.is_chief()) as progress:
        task = progress.add_task(title, total=steps, loss=float("nan"))
        for _ in range(steps):
            batch = random.integers(0, len(images), BATCH)
            losses.append(float(step(tf.constant(images[batch]), tf.constant(labels[batch]))))
            progress.update(task, advance=1, loss=losses[-1])
    return losses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--virtual-devices", type=int, help="train on so many CPU devices of this process")
    parser.add_argument("--steps", type=int, default=200)
    options = parser.parse_args()

    wh.init(virtual_devices=options.virtual_devices)
    images, labels, test_images, test_labels = load()

    model = Model()
    step = wh.function(model.train_step)
    first = tf.constant(images[:BATCH]), tf.constant(labels[:BATCH])
    begun = time.perf_counter()
    losses = train(step, images, labels, options.steps, f"{wh.size()} devices")
    seconds = time.perf_counter() - begun
    accuracy = float(np.mean(model.predict(test_images) == test_labels))

    alone = Model()
    alone_losses = train(tf.function(alone.train_step), images, labels, options.steps, "one device")
    pairs = zip(model.variables, alone.variables, strict=True)
    difference = max(float(np.max(np.abs(a.numpy() - b.numpy()))) for a, b in pairs)

    if wh.is_chief():
        program = step.program_for(*first)
        print(f"\nThe plan\n{program.plan}")
        print(step.explain(*first))
        print(shares_text(program.shares()))
        print(f"{options.steps} steps in {seconds:.1f} s on {wh.size()} devices")
        print(f"test accuracy {accuracy:.1%}")
        print(f"largest difference from one device: losses {_largest(losses, alone_losses):.1e}, ", end="")
        print(f"weights {difference:.1e}")


def _largest(a: list[float], b: list[float]) -> float:
    return max(abs(x - y) for x, y in zip(a, b, strict=True))


if __name__ == "__main__":
    main()
