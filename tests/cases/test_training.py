"""Custom training loops on two ranks equal the single device, and each other bit for bit.

A1 (horovod#4290, #1512, #260): Keras 3's variables and optimizers. C1 (horovod#2893, keras#20164): a GAN with two
optimizers, each gradient reduced once per step.
"""

from __future__ import annotations

import hashlib

import keras
import numpy as np
import pytest
import tensorflow as tf

import whaleish as wh
from tests.products import all_cases, either
from tests.transparency.precision import computing_in

pytestmark = pytest.mark.ranks
layers = keras.layers
OPTIMIZERS = {
    "sgd": lambda scale: keras.optimizers.SGD(0.05 * scale, momentum=0.9),
    "adam": lambda scale: keras.optimizers.Adam(1e-3 * scale),
    "adamw": lambda scale: keras.optimizers.AdamW(1e-3 * scale, weight_decay=0.01),
    "lion": lambda scale: keras.optimizers.Lion(1e-3 * scale),
    "nadam": lambda scale: keras.optimizers.Nadam(1e-3 * scale),
}
# At the usual rates a few images of noise make MobileNet's rounding a hundred times larger with each step, also on one
# device when the order of a sum changes.
SCALES = {"mlp": 1.0, "mobilenet": 1e-3}
STEPS = 5


def mlp() -> keras.Model:
    return keras.Sequential([keras.Input((16,)), layers.Dense(32, "gelu"), layers.Dense(10)])


def mobilenet() -> keras.Model:
    return keras.applications.MobileNetV2((32, 32, 3), alpha=0.35, weights=None, classes=10, classifier_activation=None)


def trainer(build, optimizer: str, scope):
    keras.utils.set_random_seed(21)
    model, rule = build(), OPTIMIZERS[optimizer](SCALES[build.__name__])
    rule.build(model.trainable_variables)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def step(x, y):
        with tf.GradientTape() as tape, scope():
            loss = loss_of(y, model(x, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        rule.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    return [*model.variables, *rule.variables], step


def digest(variables) -> str:
    return hashlib.sha256(b"".join(np.asarray(v.numpy()).tobytes() for v in variables)).hexdigest()


def train(build, optimizer: str, steps: int) -> tuple[list[str], float, float]:
    """Hashes of all variables after each step; against one device, the largest difference of losses, and the share of
    the variables' elements that differ.
    """
    with computing_in("float64"):  # Adam's first step is a sign: rounding would show
        plain, plain_step = trainer(build, optimizer, wh.auto)
        spread, step = trainer(build, optimizer, wh.replica)
        alone, compiled = tf.function(plain_step), wh.function(step)
        shape = (12, 16) if build.__name__ == "mlp" else (6, 32, 32, 3)
        rng, hashes, losses = np.random.default_rng(2), [], 0.0
        for _ in range(steps):
            x, y = tf.constant(rng.normal(size=shape)), tf.constant(rng.integers(0, 10, shape[0]))
            expected, got = float(alone(x, y)), float(compiled(x, y))
            losses = max(losses, abs(expected - got) / abs(expected))
            hashes.append(digest(spread))
        pairs = [(np.asarray(a), np.asarray(b)) for a, b in zip(plain, spread, strict=True)]
        differing = sum(int((np.abs(a - b) > 1e-9).sum()) for a, b in pairs)
        return hashes, losses, differing / sum(a.size for a, _ in pairs)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_an_mlp(ranks, optimizer: str) -> None:
    check(ranks.run(train, mlp, optimizer, STEPS, timeout=60))


@pytest.mark.parametrize("optimizer", either(["adam"], OPTIMIZERS))
def test_mobilenet_v2(ranks, optimizer: str) -> None:
    # Lion steps by signs, and where a gradient is nothing but rounding (a shift before a batch norm), so is its sign.
    steps = STEPS if all_cases() else 2
    found = ranks.run(train, mobilenet, optimizer, steps, timeout=300)
    # The net makes rounding a thousand times larger within its steps.
    check(found, differing=0.01 if optimizer == "lion" else 0.0, tolerance=1e-7)


def check(results, differing: float = 0.0, tolerance: float = 1e-9) -> None:
    (hashes, *_), (others, *_) = results
    assert hashes == others
    assert len(set(hashes)) == len(hashes)
    for _, losses, weights in results:
        assert losses < tolerance
        assert weights <= differing


def make_gan(scope):
    keras.utils.set_random_seed(8)
    generator = keras.Sequential([keras.Input((4,)), layers.Dense(16, "relu"), layers.Dense(6)])
    critic = keras.Sequential([keras.Input((6,)), layers.Dense(16, "relu"), layers.Dense(1)])
    rules = keras.optimizers.SGD(0.1, momentum=0.5), keras.optimizers.SGD(0.05)
    for rule, model in zip(rules, (generator, critic), strict=True):
        rule.build(model.trainable_variables)
    loss_of = keras.losses.BinaryCrossentropy(from_logits=True)

    def step(noise, real):
        with tf.GradientTape() as first, tf.GradientTape() as second, scope():
            fake = generator(noise, training=True)
            real_score, fake_score = critic(real, training=True), critic(fake, training=True)
            critic_loss = loss_of(tf.ones_like(real_score), real_score) + loss_of(tf.zeros_like(fake_score), fake_score)
            generator_loss = loss_of(tf.ones_like(fake_score), fake_score)
        for tape, loss, model, rule in (
            (first, generator_loss, generator, rules[0]),
            (second, critic_loss, critic, rules[1]),
        ):
            weights = model.trainable_variables
            rule.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return generator_loss, critic_loss

    return [*generator.variables, *critic.variables], step


def gan() -> tuple[str, float, int]:
    plain, plain_step = make_gan(wh.auto)
    spread, step = make_gan(wh.replica)
    alone, compiled = tf.function(plain_step), wh.function(step)
    rng = np.random.default_rng(3)
    for _ in range(STEPS):
        batch = tf.constant(rng.normal(size=(10, 4)), tf.float32), tf.constant(rng.normal(size=(10, 6)), tf.float32)
        np.testing.assert_allclose(compiled(*batch), alone(*batch), rtol=1e-5)
    program = compiled.program_for(*batch)
    reduced = [n for n in program.emitted.writer.function_def.node_def if n.op == "HorovodGroupedAllreduce"]
    largest = max(float(np.max(np.abs(a.numpy() - b.numpy()))) for a, b in zip(plain, spread, strict=True))
    return digest(spread), largest, sum(node.attr["num_tensors"].i for node in reduced)


def test_a_gan_with_two_optimizers(ranks) -> None:
    first, second = ranks.run(gan, timeout=60)
    assert first[0] == second[0]
    for _, largest, reduced in (first, second):
        assert largest < 1e-5
        assert reduced <= 8 + 3  # eight weights, once each, and the sums of the losses
