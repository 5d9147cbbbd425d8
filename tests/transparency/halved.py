"""Training in half precision against one device: with a loss scale, with overflows, and what is stored and sent."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import whaleish as wh
from tests.transparency.zoo import nested
from whaleish.arguments import take_call
from whaleish.planner.moves import find_moves
from whaleish.state import storage
from whaleish.world import world
from whaleish.zero import WHOLE_BELOW

WIDTH, BATCH, STEPS, OVERFLOWS_AT = 96, 16, 8, 2
SCALE, GROWS_AFTER = 2.0**12, 3
TOO_LARGE = {"float16": 1e5, "bfloat16": 1e38}
SCOPES: dict[str, Callable[[int], Any]] = {
    "replica": lambda zero: wh.replica(zero=zero),
    "split": lambda zero: wh.split(),
    "replica x split": lambda zero: nested(wh.replica(2, zero=zero), wh.split()),
    "replica x accumulate(2)": lambda zero: nested(wh.replica(zero=zero), wh.accumulate(2)),
    "recompute": lambda zero: nested(wh.replica(zero=zero), wh.recompute()),
    "stages": lambda zero: wh.replica(2, zero=zero),
    "pipeline(2)": lambda zero: nested(wh.replica(2, zero=zero), wh.pipeline(2)),
}
STAGED = ("stages", "pipeline(2)")


@dataclass
class Outcome:
    """What came out of a case, on one rank.

    Attributes:
      losses, variables: largest differences from one device, as shares of what half precision changes there.
      scales: the loss scale after each step, on one device and here.
      skipped: whether the step that overflows left all weights as they were, bit for bit.
      weights: after training, whole.
      stored: of the large weights and slots the largest share that one device has. sent: bytes a step by the plan.
    """

    losses: float
    variables: float
    scales: tuple[list[float], list[float]]
    skipped: bool
    weights: list[np.ndarray]
    stored: float
    sent: float


class Net:
    """A product with `tf.Variable`s, then layers of Keras, in two halves.

    Args:
      dtype: half precision, or "float32" for none.
      policy: whether Keras's layers have a policy for it and variables are cast by hand, in place of `wh.half`.
    """

    def __init__(self, dtype: str, policy: bool) -> None:
        self.dtype, half = dtype, dtype != "float32"
        self.scope = (lambda: wh.half(dtype)) if half and not policy else contextlib.nullcontext
        keras.utils.set_random_seed(5)
        layers, kind = keras.layers, f"mixed_{dtype}" if half and policy else None
        rng = np.random.default_rng(1)
        self.by_hand = half and policy
        self.kernel = tf.Variable(rng.normal(size=(WIDTH, WIDTH)).astype("float32") / 10, name="kernel")
        self.bias = tf.Variable(tf.zeros([WIDTH]), name="bias")
        self.layers = [
            layers.Dense(WIDTH, "gelu", dtype=kind),
            layers.LayerNormalization(dtype=kind),
            layers.Dense(WIDTH, dtype=kind),
        ]
        for layer in self.layers:
            layer.build((None, WIDTH))
        own = [weight.value for layer in self.layers for weight in layer.trainable_variables]
        self.weights = [self.kernel, self.bias, *own]
        self.rule = keras.optimizers.LossScaleOptimizer(
            keras.optimizers.SGD(0.05, momentum=0.9), SCALE, dynamic_growth_steps=GROWS_AFTER
        )
        self.rule.build(self.weights)

    def step(self, around: Callable[[], Any], staged: bool) -> Callable[..., tf.Tensor]:
        def part() -> Any:
            return wh.stage() if staged else contextlib.nullcontext()

        def step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
            with tf.GradientTape() as tape, around():
                with part(), self.scope():
                    kernel, bias = self.kernel, self.bias
                    if self.by_hand:
                        kernel, bias = tf.cast(kernel, self.dtype), tf.cast(bias, self.dtype)
                    h = tf.tanh(tf.matmul(tf.cast(x, self.dtype), kernel) + bias)
                with part(), self.scope():
                    for layer in self.layers:
                        h = layer(h)
                    assert h.dtype == self.dtype
                    loss = tf.reduce_mean((tf.cast(h, tf.float32) - y) ** 2)
                    scaled = self.rule.scale_loss(loss)
            gradients = tape.gradient(scaled, self.weights)
            assert all(gradient.dtype == tf.float32 for gradient in gradients)
            self.rule.apply_gradients(zip(gradients, self.weights, strict=True))
            return loss

        return step


def batches(too_large: float) -> list[tuple[np.ndarray, np.ndarray]]:
    """Of one batch the last row, which one part has, is so large that its gradients overflow."""
    rng = np.random.default_rng(7)
    shape = (BATCH, WIDTH)
    made = [(rng.normal(size=shape).astype("float32"), rng.normal(size=shape).astype("float32")) for _ in range(STEPS)]
    made[OVERFLOWS_AT][1][-1] *= too_large
    return made


def train(dtype: str, policy: bool, zero: int, scopes: str) -> Outcome:
    """Trains nets that begin equal: in float32 and in half precision on one device, and on all."""
    nets = [Net("float32", policy), Net(dtype, policy), Net(dtype, policy)]
    staged = scopes in STAGED
    around = [contextlib.nullcontext, contextlib.nullcontext, lambda: SCOPES[scopes](zero)]
    steps = [net.step(scope, staged and net is nets[2]) for net, scope in zip(nets, around, strict=True)]
    exact, alone, spread = tf.function(steps[0]), tf.function(steps[1]), wh.function(steps[2])
    losses: list[list[float]] = []
    scales: tuple[list[float], list[float]] = [], []
    skipped = False
    for number, given in enumerate(batches(TOO_LARGE[dtype])):
        if number != OVERFLOWS_AT:
            exact_loss = float(exact(*given))
        before = _values(nets[2]) if number == OVERFLOWS_AT else []
        losses.append([exact_loss, float(alone(*given)), float(spread(*given))])
        if number == OVERFLOWS_AT:
            skipped = all(map(np.array_equal, before, _values(nets[2])))
        for found, net in zip(scales, nets[1:], strict=True):
            found.append(float(net.rule.dynamic_scale.numpy()))
    program = spread.program_for(*given)
    kept = [
        variable
        for variable in map(_storing, [*nets[2].weights, *nets[2].rule.variables])
        if np.prod(variable.shape) >= WHOLE_BELOW
    ]
    assert all(variable.dtype == tf.float32 for variable in kept)
    normal = [row for k, row in enumerate(losses) if k != OVERFLOWS_AT]
    return Outcome(
        losses=_share([row[2] for row in normal], [row[1] for row in normal], [row[0] for row in normal]),
        variables=_share(*(np.concatenate([v.ravel() for v in _values(net)]) for net in reversed(nets))),
        scales=scales,
        skipped=skipped,
        weights=_values(nets[2]),
        stored=max(map(_stored, kept)),
        sent=sent_by(spread, given) if program.plan and not program.plan.pipelining else 0.0,
    )


def sent_in(dtype: str, policy: bool, zero: int) -> float:
    """Bytes that the plan of a step sends."""
    net = Net(dtype, policy)
    return sent_by(wh.function(net.step(lambda: wh.replica(zero=zero), False)), batches(1.0)[0])


def sent_by(compiled: Any, given: Any) -> float:
    call = take_call(given, {}, "global", world())
    captured = compiled._capture(call)
    plan = compiled._plan_of(captured, call)
    return sum(move.nbytes for move in find_moves(captured.graph, plan).values())


def add_up(dtype: str, summands: list[float], scope: str) -> tuple[float, float]:
    """The gradient of a weight to which each row of a batch contributes a number: on one device, and here."""
    rows = np.asarray(summands, "float32")[:, None]
    found, nothing = [], contextlib.nullcontext
    ways = [
        (tf.function, nothing, nothing),
        (wh.function, lambda: SUMS[scope](len(summands)), wh.stage if scope == "pipeline" else nothing),
    ]
    for compiled, around, stage in ways:
        weight = tf.Variable(tf.zeros([1, 1]))

        def step(x, weight=weight, around=around, stage=stage):
            with tf.GradientTape() as tape, around():
                with stage(), wh.half(dtype):
                    y = tf.cast(tf.cast(x, dtype) @ weight, tf.float32)
                loss = tf.reduce_sum(y)
            weight.assign_sub(tape.gradient(loss, weight))

        compiled(step)(rows)
        found.append(-float(weight.numpy()[0, 0]))
    return found[0], found[1]


SUMS: dict[str, Callable[[int], Any]] = {
    "replica": lambda n: wh.replica(),
    "accumulate": wh.accumulate,
    "pipeline": wh.pipeline,
}


def _values(net: Net) -> list[np.ndarray]:
    return [weight.numpy() for weight in net.weights]


def _storing(variable: Any) -> Any:
    return variable.value if isinstance(variable, keras.Variable) else variable


def _stored(variable: Any) -> float:
    if storage(variable).whole:
        return 1.0
    whole = float(np.prod(variable.shape))
    return max((float(np.prod(resource.read().shape)) / whole for resource in variable.parts.resources), default=0.0)


def _share(here: Any, alone: Any, exact: Any) -> float:
    """How far two are apart, by how far one of them is from what it rounds."""
    here, alone, exact = map(np.asarray, (here, alone, exact))
    return float(np.abs(here - alone).max() / np.abs(alone - exact).max())
