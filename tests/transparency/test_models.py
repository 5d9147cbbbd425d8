"""One training step of well-known models on 2 x 2 and on 3 devices equals one device, and no op lacks a rule."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import keras
import pytest

from tests.products import either
from tests.transparency.one_step import CLASSES, MESHES, TOKENS, check, on

layers = keras.layers


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
    x = embedded(tokens, TOKENS, 16, 6)
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
    memory = block(embedded(source, TOKENS, 16, 5), 4, 16, False)
    x = block(embedded(target, TOKENS, 16, 3), 4, 16, True, memory)
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
SMALL = [("LSTM", "2x2"), ("GPT-2", "2x2"), ("ViT", "split 3"), ("encoder-decoder", "3"), ("U-Net", "2x2")]
CASES = [
    (model, mesh) for model, mesh in itertools.product(MODELS, MESHES) if mesh != "split 3" or model in dict(SMALL)
]


@pytest.mark.timeout(1500)
@pytest.mark.parametrize(("model", "mesh", "world_of"), on(either(SMALL, CASES)), indirect=["world_of"])
def test_one_step(model: str, mesh: str, world_of: int) -> None:
    check(MODELS[model], mesh)
