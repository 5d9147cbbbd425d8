"""How compiling grows with the model: transformers of more and more layers, with momentum, and ResNet-50, with AdamW.

trace        the user's Python and TensorFlow's trace
capture      what is left of the capture: from the traced graph to the logical one
replica      planning on 4 devices; the peak is the memory that it takes besides what the process had
split        planning on 2 devices
2x2          planning `replica(2)` round `split()` on 4 devices
emit         the function of one process with 4 devices, under the last of these plans
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from tools.bench.compile import Clock
from tools.bench.resnet import data, make_net
from tools.bench.worker import peak_bytes

LAYERS = (12, 25, 50, 100)
WIDTH, HEADS, LENGTH, TOKENS, BATCH, RATE = 16, 2, 8, 50, 8, 1e-3
DEVICES = 4
RESNET = "ResNet-50"

Loss = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
Made = tuple[list[Any], Loss, Callable[[list[Any]], None], tuple[tf.Tensor, tf.Tensor]]
"""Variables, loss, update by gradients, and a batch."""


def measure() -> dict[str, dict[str, Any]]:
    """`12: trace` and so on -> seconds, CPU seconds, and the peak of planning; once each."""
    import whaleish as wh
    from whaleish.rules import registry  # noqa: F401 - loading is no part of compiling

    wh.init(virtual_devices=DEVICES)
    found: dict[str, dict[str, Any]] = {}
    for layers in LAYERS:
        found |= _compile(f"{layers} layers", transformer(layers))
    return found | _compile(RESNET, resnet())


def transformer(layers: int) -> Made:
    """A language model whose blocks normalise first."""
    keras.utils.set_random_seed(7)
    k = keras.layers
    tokens = keras.Input((LENGTH,), dtype="int32")
    x = k.Embedding(TOKENS, WIDTH)(tokens)
    for _ in range(layers):
        h = k.LayerNormalization()(x)
        x = x + k.MultiHeadAttention(HEADS, WIDTH // HEADS)(h, h, use_causal_mask=True)
        h = k.Dense(2 * WIDTH, "gelu")(k.LayerNormalization()(x))
        x = x + k.Dense(WIDTH)(h)
    model = keras.Model(tokens, k.Dense(TOKENS)(k.LayerNormalization()(x)))
    weights = model.trainable_variables
    optimizer = keras.optimizers.SGD(RATE, momentum=0.9)
    optimizer.build(weights)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    given = tf.zeros((BATCH, LENGTH), tf.int32)
    return (
        weights,
        lambda x, y: loss_of(y, model(x, training=True)),
        lambda gradients: optimizer.apply_gradients(zip(gradients, weights, strict=True)),
        (given, given),
    )


def resnet() -> Made:
    net = make_net("adamw")
    return net.weights, net.loss, net.update, data()


@contextlib.contextmanager
def scopes() -> Iterator[None]:
    import whaleish as wh

    with wh.replica(2), wh.split():
        yield


def _compile(name: str, made: Made) -> dict[str, dict[str, Any]]:
    from whaleish.capture import capture, fingerprint
    from whaleish.cluster import Cluster
    from whaleish.graph import Scope
    from whaleish.planner import make_plan
    from whaleish.program import emit
    from whaleish.world import world

    weights, loss_of, update, given = made
    trace: dict[str, Any] = {}

    def step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        clock = Clock()
        with tf.GradientTape() as tape, scopes():
            loss = loss_of(x, y)
        update(tape.gradient(loss, [weight.value for weight in weights]))
        trace.update(clock.read())
        return loss

    clock = Clock()
    captured = capture(step, *given)
    whole = clock.read()
    nodes, ops = len(captured.concrete.graph.get_operations()), len(captured.graph.ops)
    found = {
        "trace": trace | {"note": f"{nodes} nodes, of which {ops} are planned"},
        "capture": {figure: [whole[figure][0] - trace[figure][0]] for figure in whole},
    }
    outer, inner = captured.graph.scopes[1]
    alone = {"replica": (DEVICES, (Scope("replica", 0),)), "split": (2, (inner,)), "2x2": (DEVICES, (outer, inner))}
    for scope, (devices, path) in alone.items():
        graph = dataclasses.replace(captured.graph, scopes=[(), path])
        before = _begin_peak()
        clock = Clock()
        plan = make_plan(graph, Cluster(devices), fingerprint=fingerprint(graph)[:12])
        found[scope] = clock.read() | {"peak": peak_bytes() - before}
    clock = Clock()
    emit(captured, plan, world()).function_def("bench_planning")
    found["emit"] = clock.read()
    return {f"{name}: {part}": figures for part, figures in found.items()}


def _begin_peak() -> int:
    """Forgets the process's peak memory so far; returns what it has now."""
    gc.collect()
    pathlib.Path("/proc/self/clear_refs").write_text("5")
    return peak_bytes()
