"""One training step of keras-hub's BERT, GPT-2 and ViT on 2 x 2 and on 3 devices equals one device."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import keras
import pytest

from tests.products import either
from tests.transparency.one_step import CLASSES, MESHES, TOKENS, check, on

layers, ops = keras.layers, keras.ops
LENGTH, WIDTH = 6, 16
SIZES = {
    "vocabulary_size": TOKENS,
    "num_layers": 2,
    "num_heads": 4,
    "hidden_dim": WIDTH,
    "intermediate_dim": 2 * WIDTH,
    "max_sequence_length": 8,
}


def filled(tokens):
    """The first places of each sequence, from one to all of them; the others are padding."""
    return ops.cast(tokens[:, :1] % LENGTH >= ops.arange(LENGTH), "int32")


def bert() -> keras.Model:
    """A classifier of whole sentences."""
    from keras_hub.models import BertBackbone

    tokens = keras.Input((LENGTH,), dtype="int32")
    segments = ops.cast(tokens >= TOKENS // 2, "int32")
    made = BertBackbone(**SIZES)({"token_ids": tokens, "segment_ids": segments, "padding_mask": filled(tokens)})
    x = layers.Concatenate()([made["pooled_output"], layers.GlobalAveragePooling1D()(made["sequence_output"])])
    return keras.Model(tokens, layers.Dense(CLASSES)(x))


def gpt2(tied: bool) -> keras.Model:
    """A language model, by its mean logits; `tied`: it tells words by the table that it reads them from."""
    from keras_hub.models import GPT2Backbone

    tokens = keras.Input((LENGTH,), dtype="int32")
    backbone = GPT2Backbone(**SIZES)
    x = backbone({"token_ids": tokens, "padding_mask": filled(tokens)})
    logits = backbone.token_embedding(x, reverse=True) if tied else layers.Dense(TOKENS)(x)
    return keras.Model(tokens, layers.GlobalAveragePooling1D()(logits))


def vit() -> keras.Model:
    """A classifier of images, by the class token."""
    from keras_hub.models import ViTBackbone

    images = keras.Input((16, 16, 3))
    backbone = ViTBackbone(
        image_shape=(16, 16, 3),
        patch_size=4,
        num_layers=2,
        num_heads=4,
        hidden_dim=WIDTH,
        mlp_dim=2 * WIDTH,
        dropout_rate=0.1,
        attention_dropout=0.1,
    )
    return keras.Model(images, layers.Dense(CLASSES)(backbone(images)[:, 0]))


MODELS: dict[str, Callable[[], keras.Model]] = {
    "BERT": bert,
    "GPT-2": lambda: gpt2(False),
    "GPT-2, tied": lambda: gpt2(True),
    "ViT": vit,
}
FEW = [("BERT", "2x2"), ("GPT-2, tied", "2x2"), ("ViT", "3"), ("GPT-2", "split 3")]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("model", "mesh", "world_of"), on(either(FEW, itertools.product(MODELS, MESHES))), indirect=["world_of"]
)
def test_one_step(model: str, mesh: str, world_of: int) -> None:
    check(MODELS[model], mesh)
