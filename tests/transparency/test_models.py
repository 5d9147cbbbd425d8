"""One training step of well-known models on 2 x 2 and on 3 devices equals one device, and no op lacks a rule."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import keras
import numpy as np
import pytest
import tensorflow as tf

import whaleish as wh
from tests.products import either
from tests.transparency.precision import computing_in
from tests.transparency.zoo import nested
from whaleish.report.explain import without_rule
from whaleish.rewrite.expand import expand

layers = keras.layers
CLASSES = 6


def application(name: str, size: int = 32) -> Callable[[], keras.Model]:
    return lambda: getattr(keras.applications, name)(
        weights=None, input_shape=(size, size, 3), classes=CLASSES, classifier_activation=None
    )


def recurrent(layer: str) -> Callable[[], keras.Model]:
    make = getattr(layers, layer)
    return lambda: keras.Sequential(
        [keras.Input((5, 6)), make(8, return_sequences=True), make(8), layers.Dense(CLASSES)]
    )


def block(x, heads: int, width: int, causal: bool, memory=None):
    """A transformer block that normalises first, as GPT-2 and ViT do."""
    h = layers.LayerNormalization()(x)
    x = x + layers.MultiHeadAttention(heads, width // heads)(h, h, use_causal_mask=causal)
    if memory is not None:
        x = x + layers.MultiHeadAttention(heads, width // heads)(layers.LayerNormalization()(x), memory)
    h = layers.Dense(2 * width, "gelu")(layers.LayerNormalization()(x))
    return x + layers.Dropout(0.1, seed=3)(layers.Dense(width)(h))


def embedded(tokens, vocabulary: int, width: int, length: int):
    places = layers.Embedding(length, width)(keras.ops.arange(length))
    return layers.Embedding(vocabulary, width)(tokens) + places


def language_model(causal: bool) -> keras.Model:
    tokens = keras.Input((6,), dtype="int32")
    x = embedded(tokens, 30, 16, 6)
    for _ in range(2):
        x = block(x, 4, 16, causal)
    return keras.Model(tokens, layers.Dense(CLASSES)(layers.GlobalAveragePooling1D()(layers.LayerNormalization()(x))))


def vision_transformer() -> keras.Model:
    images = keras.Input((16, 16, 3))
    x = layers.Reshape((16, 16))(layers.Conv2D(16, 4, 4)(images))
    for _ in range(2):
        x = block(x + layers.Embedding(16, 16)(keras.ops.arange(16)), 4, 16, False)
    return keras.Model(images, layers.Dense(CLASSES)(layers.LayerNormalization()(x)[:, 0]))


def translator() -> keras.Model:
    """An encoder and a decoder of a sequence's two halves."""
    tokens = keras.Input((8,), dtype="int32")
    source, target = tokens[:, :5], tokens[:, 5:]
    memory = block(embedded(source, 30, 16, 5), 4, 16, False)
    x = block(embedded(target, 30, 16, 3), 4, 16, True, memory)
    return keras.Model(tokens, layers.Dense(CLASSES)(layers.Flatten()(x)))


def unet() -> keras.Model:
    images = keras.Input((16, 16, 3))
    first = layers.Conv2D(8, 3, padding="same", activation="relu")(images)
    second = layers.BatchNormalization()(layers.Conv2D(12, 3, padding="same")(layers.MaxPooling2D()(first)))
    up = layers.Conv2DTranspose(8, 2, 2)(layers.Activation("relu")(second))
    x = layers.Conv2D(8, 3, padding="same")(layers.Concatenate()([first, up]))
    x = layers.UpSampling2D()(layers.AveragePooling2D(2)(x))
    return keras.Model(images, layers.GlobalAveragePooling2D()(layers.Conv2D(CLASSES, 1)(x)))


MODELS: dict[str, Callable[[], keras.Model]] = {
    "ResNet50": application("ResNet50"),
    "EfficientNetV2B0": application("EfficientNetV2B0"),
    "MobileNetV3Small": application("MobileNetV3Small"),
    "DenseNet121": application("DenseNet121"),
    "ConvNeXtTiny": application("ConvNeXtTiny"),
    "Xception": application("Xception", 71),
    "LSTM": recurrent("LSTM"),
    "GRU": recurrent("GRU"),
    "BERT": lambda: language_model(False),
    "GPT-2": lambda: language_model(True),
    "ViT": vision_transformer,
    "encoder-decoder": translator,
    "U-Net": unet,
}
MESHES = {"2x2": (4, lambda: nested(wh.replica(2), wh.split())), "3": (3, wh.replica), "split 3": (3, wh.split)}
SMALL = [("LSTM", "2x2"), ("GPT-2", "2x2"), ("ViT", "split 3"), ("encoder-decoder", "3"), ("U-Net", "2x2")]
CASES = [
    (model, mesh) for model, mesh in itertools.product(MODELS, MESHES) if mesh != "split 3" or model in dict(SMALL)
]


def make(build: Callable[[], keras.Model], around):
    keras.utils.set_random_seed(7)
    model = build()
    rule = keras.optimizers.SGD(1e-3, momentum=0.9)
    rule.build(model.trainable_variables)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def step(x, y):
        with tf.GradientTape() as tape, around():
            loss = loss_of(y, model(x, training=True))
        weights = model.trainable_variables
        rule.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return loss

    return model, step


@pytest.mark.timeout(1500)
@pytest.mark.parametrize(
    ("model", "mesh", "world_of"),
    [(model, mesh, MESHES[mesh][0]) for model, mesh in either(SMALL, CASES)],
    indirect=["world_of"],
)
@computing_in("float64")
def test_one_step(model: str, mesh: str, world_of: int) -> None:
    check(MODELS[model], MESHES[mesh][1], world_of)


def check(build: Callable[[], keras.Model], around, size: int) -> None:
    plain, step = make(build, wh.auto)
    alone = tf.function(step)
    model, step = make(build, around)
    compiled = wh.function(step)
    rng, (_, *shape) = np.random.default_rng(1), plain.input_shape
    integers = plain.inputs[0].dtype == "int32"
    x = rng.integers(0, 30, (12, *shape)).astype("int32") if integers else rng.normal(size=(12, *shape))
    given = tf.constant(x), tf.constant(rng.integers(0, CLASSES, 12))
    assert float(compiled(*given)) == pytest.approx(float(alone(*given)), rel=1e-9)
    for a, b in zip(model.variables, plain.variables, strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-6, atol=1e-9, err_msg=b.path)
    program = compiled.program_for(*given)
    graph, _ = expand(program.capture.graph, program.plan)
    assert [graph.ops[index].type for index in without_rule(graph)] == []
    done = [share.flops / share.step_flops for share in program.shares()]
    assert max(done) <= 1 / size + 0.05, done
