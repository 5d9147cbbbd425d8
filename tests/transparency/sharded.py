"""Training under `replica(zero=...)` against one device, and what of the state each device stores."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import whaleish as wh
from tests.transparency.compare import difference
from tests.transparency.precision import computing_in
from tests.transparency.zoo import nested
from whaleish.arguments import take_call
from whaleish.planner.moves import find_moves
from whaleish.rules.gradient import GRADIENT
from whaleish.state import storage
from whaleish.world import world
from whaleish.zero import WHOLE_BELOW

TOKENS, WIDTH, LENGTH, CLASSES, STEPS = 80, 64, 5, 11, 3

RULES: dict[str, Callable[[], keras.Optimizer]] = {
    "sgd": lambda: keras.optimizers.SGD(0.05, momentum=0.9),
    "adamw": lambda: keras.optimizers.AdamW(0.01, weight_decay=0.1, global_clipnorm=0.5),
    "lion": lambda: keras.optimizers.Lion(0.01),
    "adafactor": lambda: keras.optimizers.Adafactor(0.01),
    "scaled": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.01, use_ema=True), 8.0),
}
SCOPES: dict[str, Callable[[int], Any]] = {
    "replica": lambda zero: wh.replica(zero=zero),
    "split": lambda zero: wh.split(),
    "replica x split": lambda zero: nested(wh.replica(2, zero=zero), wh.split()),
    "replica x accumulate(3)": lambda zero: nested(wh.replica(zero=zero), wh.accumulate(3)),
    "stages": lambda zero: wh.replica(2, zero=zero),
    "pipeline(3)": lambda zero: nested(wh.replica(2, zero=zero), wh.pipeline(3)),
}
STAGED = ("stages", "pipeline(3)")


@dataclass
class Outcome:
    """What came out of a case, on one rank.

    Attributes:
      losses, variables: largest differences from one device.
      weights, slots, gradients: of the large ones the largest share that one device has of one of them.
      sent: bytes a step by the plan. plain: the same without `zero`.
      on_host: of the large slots the share that lies in the host's memory, by their number.
    """

    losses: float
    variables: float
    weights: float
    slots: float
    gradients: float
    sent: float
    plain: float
    on_host: float


class Net:
    """Two halves; kernels of at least `WHOLE_BELOW` elements but for the last one, and small variables."""

    def __init__(self, rule: str) -> None:
        layers = keras.layers
        keras.utils.set_random_seed(4)
        table: list[Any] = [layers.Embedding(TOKENS, WIDTH)]
        if rule == "adafactor":  # it updates as many rows as there are different tokens, which runs whole
            one_hot = layers.CategoryEncoding(TOKENS, "one_hot")
            table = [one_hot, layers.Dense(WIDTH, use_bias=False)]
        self.halves = [
            [*table, layers.Conv1D(70, 2, activation="gelu"), layers.LayerNormalization()],
            [layers.Flatten(), layers.Dropout(0.2, seed=3), layers.Dense(72, activation="tanh"), layers.Dense(CLASSES)],
        ]
        model = keras.Sequential([keras.Input((LENGTH,), dtype="int32"), *self.halves[0], *self.halves[1]])
        self.model, self.weights, self.rule = model, model.trainable_variables, RULES[rule]()
        self.rule.build(self.weights)
        self.variables = [*model.variables, *self.rule.variables]

    @property
    def objects(self) -> dict[str, Any]:
        """What a checkpoint has of it."""
        return {"model": self.model, "rule": self.rule, "seeds": self.model.non_trainable_variables}

    def step(self, around: Callable[[], Any], staged: bool) -> Callable[..., tf.Tensor]:
        loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

        def step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
            with tf.GradientTape() as tape, around():
                for half in self.halves:
                    with wh.stage() if staged else contextlib.nullcontext():
                        for layer in half:
                            x = layer(x, training=True) if isinstance(layer, keras.layers.Dropout) else layer(x)
                loss = loss_of(y, x)
                scaled = self.rule.scale_loss(loss)
            self.rule.apply_gradients(zip(tape.gradient(scaled, self.weights), self.weights, strict=True))
            return loss

        return step


def train(rule: str, zero: int, scopes: str, batch: int, offload: bool = False) -> Outcome:
    """Trains two equal nets, one on one device, in float64."""
    with computing_in("float64"):
        return _train(rule, zero, scopes, batch, offload)


def _train(rule: str, zero: int, scopes: str, batch: int, offload: bool) -> Outcome:
    staged = scopes in STAGED

    def around(zero: int) -> Any:
        return nested(wh.offload(), SCOPES[scopes](zero)) if offload else SCOPES[scopes](zero)

    alone, spread = Net(rule), Net(rule)
    plain = tf.function(alone.step(contextlib.nullcontext, False))
    compiled = wh.function(spread.step(lambda: around(zero), staged))
    rng = np.random.default_rng(7)
    losses = []
    for _ in range(STEPS):
        given = rng.integers(0, TOKENS, (batch, LENGTH)).astype("int32"), rng.integers(0, CLASSES, batch)
        losses.append(abs(float(plain(*given)) - float(compiled(*given))))
    without = wh.function(Net(rule).step(lambda: SCOPES[scopes](0), staged))
    weights = {id(weight) for weight in spread.weights}
    program = compiled.program_for(*given)
    own = program.capture.graph, program.plan
    used = {id(variable) for variable in program.capture.variables}
    hosted = {spec.name for spec in program.capture.graph.variables if spec.on_host}
    names = {id(v): spec.name for v, spec in zip(program.capture.variables, own[0].variables, strict=True)}
    large = [v for v in spread.variables if np.prod(v.shape) >= WHOLE_BELOW and id(v.value) in used]
    slots = [v for v in large if id(v) not in weights]
    return Outcome(
        losses=max(losses),
        variables=max(map(difference, alone.variables, spread.variables)),
        weights=max(_stored(v.value) for v in large if id(v) in weights),
        slots=max((_stored(v.value) for v in slots), default=0.0),
        gradients=max(_gradients(*own), default=1.0),
        sent=_sent(*own),
        plain=_sent(*_planned(without, given)),
        on_host=sum(names[id(v.value)] in hosted for v in slots) / max(len(slots), 1),
    )


def _stored(variable: Any) -> float:
    """The largest share that a part has of a variable: by its storage here, where some of it is here."""
    stored = storage(variable)
    if stored.whole:
        return 1.0
    whole = float(np.prod(variable.shape))
    return max((float(np.prod(resource.read().shape)) / whole for resource in variable.parts.resources), default=0.0)


def _planned(compiled: Any, given: Any) -> tuple[Any, Any]:
    call = take_call(given, {}, "global", world())
    captured = compiled._capture(call)
    return captured.graph, compiled._plan_of(captured, call)


def _gradients(graph: Any, plan: Any) -> list[float]:
    """Of each marked gradient the largest share that a part has, for all micro-batches together."""
    found = []
    for index, op in enumerate(graph.ops):
        if op.type == GRADIENT:
            shape, mesh = graph.tensors[op.outputs[0]].shape, plan.mesh_of(index)
            (layout,) = plan.choices[index].outputs
            found += [np.prod(mesh.local_shape(shape, layout, part)) / np.prod(shape) for part in range(mesh.size)]
    return found


def _sent(graph: Any, plan: Any) -> float:
    return 0.0 if plan.pipelining else sum(move.nbytes for move in find_moves(graph, plan).values())
