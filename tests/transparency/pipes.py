"""Steps in stages for transparency tests: the same code with and without the scopes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import whaleish as wh
from tests.transparency import work
from tests.transparency.compare import difference
from tests.transparency.precision import computing_in

STEPS = 3
BLOCKS = 4
WIDTH = 32
TOKENS = 24
CLASSES = 10
MICRO_BATCHES = (1, 2, 4, 7, 8)


@dataclass(frozen=True)
class Pipe:
    """The scopes of a step.

    Attributes:
      stages: how many of them share the blocks of a model.
      micro_batches: None for stages without a pipeline.
      outer, inner: scopes round the pipeline, and inside each stage.
      devices: of each stage; None: they share all evenly.
    """

    stages: int = 2
    micro_batches: int | None = 4
    schedule: str = "1f1b"
    recompute: bool = False
    outer: Callable[[], Any] = contextlib.nullcontext
    inner: Callable[[], Any] = contextlib.nullcontext
    devices: tuple[tuple[int, ...], ...] | None = None

    def around(self) -> Any:
        stack = contextlib.ExitStack()
        stack.enter_context(self.outer())
        if self.micro_batches is not None:
            stack.enter_context(wh.pipeline(self.micro_batches, self.schedule, self.recompute))
        return stack

    def stage(self, number: int) -> Any:
        stack = contextlib.ExitStack()
        stack.enter_context(wh.stage(self.devices[number] if self.devices else None))
        stack.enter_context(self.inner())
        return stack

    def stage_of(self, block: int) -> int:
        return block * self.stages // BLOCKS


class NoPipe(Pipe):
    """The same step without scopes."""

    def around(self) -> Any:
        return contextlib.nullcontext()

    def stage(self, number: int) -> Any:
        return contextlib.nullcontext()


@dataclass
class Net:
    """A model in blocks.

    Attributes:
      loss: from inputs and labels to the loss, inside the scopes that the net was made for.
    """

    layers: list[Any]
    loss: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
    tokens: bool = False

    @property
    def trained(self) -> list[Any]:
        return [variable for layer in self.layers for variable in layer.trainable_variables]

    @property
    def variables(self) -> list[Any]:
        return [variable for layer in self.layers for variable in layer.variables]

    def draw(self, rng: np.random.Generator, batch: int) -> tuple[np.ndarray, np.ndarray]:
        x = rng.integers(0, TOKENS, (batch, 5)).astype("int32") if self.tokens else rng.normal(size=(batch, WIDTH))
        return x, rng.integers(0, CLASSES, batch).astype("int32")


def _block(number: int) -> Any:
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((WIDTH,)),
            layers.Dense(WIDTH, activation="gelu"),
            layers.LayerNormalization(),
            layers.Dropout(0.2, seed=number),
        ]
    )


def _through(pipe: Pipe, blocks: list[Any], h: tf.Tensor, last: Callable[[tf.Tensor], tf.Tensor]) -> tf.Tensor:
    """The blocks in their stages, and what the last stage does besides."""
    for stage in range(pipe.stages):
        with pipe.stage(stage):
            for number, block in enumerate(blocks):
                if pipe.stage_of(number) == stage:
                    h = block(h, training=True)
            if stage == pipe.stages - 1:
                h = last(h)
    return h


def _cross_entropy(y: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    return keras.losses.sparse_categorical_crossentropy(y, logits, from_logits=True)


def plain(pipe: Pipe) -> Net:
    """Blocks with dropout, one after another."""
    blocks, head = [_block(n) for n in range(BLOCKS)], keras.layers.Dense(CLASSES)
    head.build((None, WIDTH))

    def loss(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with pipe.around():
            logits = _through(pipe, blocks, x, head)
        return tf.reduce_mean(_cross_entropy(y, logits))

    return Net([*blocks, head], loss)


def woven(pipe: Pipe) -> Net:
    """A skip connection over all stages, a loss in the first and in the last, weights by row, a sum of them below."""
    blocks, head, side = [_block(n) for n in range(BLOCKS)], keras.layers.Dense(CLASSES), keras.layers.Dense(CLASSES)
    head.build((None, 2 * WIDTH))
    side.build((None, WIDTH))

    def loss(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        weights = tf.cast(y % 3, x.dtype)
        with pipe.around():
            h = x
            for stage in range(pipe.stages):
                with pipe.stage(stage):
                    if stage == 0:
                        h = first = blocks[0](x, training=True)
                        early = _cross_entropy(y, side(first))
                    for number in range(1, BLOCKS):
                        if pipe.stage_of(number) == stage:
                            h = blocks[number](h, training=True)
                    if stage == pipe.stages - 1:
                        late = _cross_entropy(y, head(tf.concat([h, first], -1)))
        late = tf.reduce_sum(late * weights) / (tf.reduce_sum(weights) + 1)
        return late + 0.3 * tf.reduce_mean(early)

    return Net([*blocks, head, side], loss)


def tied(pipe: Pipe) -> Net:
    """An embedding whose table is the last stage's weight too; padded tokens are left out."""
    table = keras.layers.Embedding(TOKENS, WIDTH)
    table.build((None, 5))
    blocks = [_block(n) for n in range(BLOCKS)]

    def loss(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        mask = tf.cast(x != 0, "float64")

        def first(h: tf.Tensor, training: bool) -> tf.Tensor:
            h = table(h)
            h = tf.reduce_sum(h * mask[..., None], 1) / (tf.reduce_sum(mask, 1, keepdims=True) + 1.0)
            return blocks[0](h, training=training)

        with pipe.around():
            own = [first, *blocks[1:]]
            logits = _through(pipe, own, x, lambda h: tf.matmul(h, table.embeddings, transpose_b=True))
        return tf.reduce_mean(_cross_entropy(y, logits))

    return Net([table, *blocks], loss, tokens=True)


def functional(pipe: Pipe) -> Net:
    """Built in the scopes, not called in them: a layer that two stages share, and one that can run before its stage."""
    dense, made = keras.layers.Dense, []
    x = h = keras.Input((WIDTH,))
    shared = dense(WIDTH, activation="tanh")
    with pipe.around():
        for stage in range(pipe.stages):
            with pipe.stage(stage):
                for number in range(BLOCKS):
                    if pipe.stage_of(number) == stage:
                        made.append(_block(number))
                        h = made[-1](h)
                if stage == 0:
                    h = first = shared(h)
                if stage == pipe.stages - 1:
                    gate = keras.layers.Dropout(0.1, seed=9)(dense(WIDTH, activation="sigmoid")(x))
                    logits = dense(CLASSES)(keras.layers.Concatenate()([shared(h) * gate, first]))
    model = keras.Model(x, logits)

    def loss(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        return tf.reduce_mean(_cross_entropy(y, model(x, training=True)))

    return Net([model], loss)


NETS = {build.__name__: build for build in (plain, woven, tied, functional)}
OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "sgd": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    "adamw": lambda: keras.optimizers.AdamW(0.002, weight_decay=0.01),
    "scaled": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.002), dynamic_growth_steps=2),
    "accumulating": lambda: keras.optimizers.SGD(0.1, momentum=0.9, gradient_accumulation_steps=2, use_ema=True),
    "adding up": lambda: keras.optimizers.SGD(0.1, gradient_accumulation_steps=2),
    "clipped": lambda: keras.optimizers.SGD(0.1, global_clipnorm=0.5),
}


def make(net: str, pipe: Pipe, optimizer: str) -> tuple[Net, Any, Callable[..., tf.Tensor]]:
    """A net from a fixed seed, its optimizer and its step."""
    keras.utils.set_random_seed(7)
    made, rule = NETS[net](pipe), OPTIMIZERS[optimizer]()
    rule.build(made.trained)

    def step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = rule.scale_loss(made.loss(x, y))
        rule.apply_gradients(zip(tape.gradient(loss, made.trained), made.trained, strict=True))
        return loss

    return made, rule, step


@dataclass
class Outcome:
    """What came of a case.

    Attributes:
      losses, weights: largest differences from the same step without scopes.
      work, held: for each device, the shares of the products that it does and of the bytes of variables that it stores.
    """

    losses: float
    weights: float
    work: dict[str, float]
    held: dict[str, float]


def compare(net: str, pipe: Pipe, optimizer: str, batch: int) -> Outcome:
    """Trains two equal nets, one without scopes, and compares losses and all variables."""
    with computing_in("float64"):
        alone, alone_rule, alone_step = make(net, NoPipe(pipe.stages), optimizer)
        spread, spread_rule, spread_step = make(net, pipe, optimizer)
        plain_step, compiled = tf.function(alone_step), wh.function(spread_step)
        rng = np.random.default_rng(5)
        losses = []
        for _ in range(STEPS):
            given = tuple(map(tf.constant, alone.draw(rng, batch)))
            losses.append((float(plain_step(*given)), float(compiled(*given))))
        before = [*alone.variables, *alone_rule.variables]
        after = [*spread.variables, *spread_rule.variables]
        program = compiled.program_for(*given)
        return Outcome(
            losses=max(abs(a - b) for a, b in losses),
            weights=max(map(difference, before, after)),
            work=work.staged_flops(program, plain_step.get_concrete_function(*given).graph),
            held=work.held(program),
        )
