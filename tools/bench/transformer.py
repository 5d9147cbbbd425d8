"""A transformer block, 1024 wide, whose heads and hidden units are split over two devices of one process.

x [4, 128, 1024] ── norm ── q, k, v [1024, 16, 64] ── attention ── o [16, 64, 1024] ── + x ─┐
                                     columns                         rows                   │
                  ┌─────────────────────────────────────────────────────────────────────────┘
                  └─ norm ── up [1024, 4096] ── gelu ── down [4096, 1024] ── + ── mean square
                               columns                    rows
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tools.bench.contestant import Builders, Contestant

WIDTH, HEADS, HIDDEN, BATCH, LENGTH = 1024, 16, 4096, 4, 128
DEVICES, RATE = 2, 0.1
SIZE = WIDTH // HEADS
SHAPES = {
    "scale1": (WIDTH,),
    "shift1": (WIDTH,),
    "q": (WIDTH, HEADS, SIZE),
    "k": (WIDTH, HEADS, SIZE),
    "v": (WIDTH, HEADS, SIZE),
    "o": (HEADS, SIZE, WIDTH),
    "scale2": (WIDTH,),
    "shift2": (WIDTH,),
    "up": (WIDTH, HIDDEN),
    "bias": (HIDDEN,),
    "down": (HIDDEN, WIDTH),
}
SPLIT = {"q": 1, "k": 1, "v": 1, "o": 0, "up": 1, "bias": 0, "down": 0}
"""Weight -> the dim that is split; the others are whole (Megatron-LM, Shoeybi et al., 2019)."""


def weights() -> dict[str, np.ndarray]:
    """The same for all contestants."""
    rng = np.random.default_rng(7)
    found = {name: rng.normal(size=shape) * WIDTH**-0.5 for name, shape in SHAPES.items()}
    found |= {name: np.ones(WIDTH) for name in ("scale1", "scale2")}
    return {name: value.astype("float32") for name, value in found.items()}


def data() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(2, BATCH, LENGTH, WIDTH)).astype("float32")
    return x, y


def norm(x: tf.Tensor, scale: Any, shift: Any) -> tf.Tensor:
    centred = x - tf.reduce_mean(x, -1, keepdims=True)
    variance = tf.reduce_mean(centred * centred, -1, keepdims=True)
    return centred * tf.math.rsqrt(variance + 1e-5) * scale + shift


def loss_of(w: Mapping[str, Any], x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    h = norm(x, w["scale1"], w["shift1"])
    q, k, v = (tf.einsum("bsd,dhk->bhsk", h, w[name]) for name in "qkv")
    attention = tf.nn.softmax(tf.einsum("bhqk,bhsk->bhqs", q, k) * SIZE**-0.5)
    x = x + tf.einsum("bhqk,hkd->bqd", tf.einsum("bhqs,bhsk->bhqk", attention, v), w["o"])
    h = norm(x, w["scale2"], w["shift2"])
    h = tf.nn.gelu(tf.einsum("bsd,df->bsf", h, w["up"]) + w["bias"], approximate=True)
    x = x + tf.einsum("bsf,fd->bsd", h, w["down"])
    return tf.reduce_mean((x - y) * (x - y))


def train(w: Mapping[str, Any], loss: Callable[[], tf.Tensor]) -> tf.Tensor:
    """One step of SGD."""
    with tf.GradientTape() as tape:
        value = loss()
    for variable, gradient in zip(w.values(), tape.gradient(value, list(w.values())), strict=True):
        variable.assign_sub(RATE * gradient)
    return value


def single() -> Contestant:
    """One device."""
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * DEVICES)
    w = {name: tf.Variable(value) for name, value in weights().items()}
    x, y = map(tf.constant, data())

    @tf.function
    def step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        return train(w, lambda: loss_of(w, x, y))

    return Contestant(lambda: float(step(x, y)))


def dtensor() -> Contestant:
    """`tf.experimental.dtensor`."""
    dt = tf.experimental.dtensor
    mesh = dt.create_mesh([("model", DEVICES)], devices=[f"CPU:{k}" for k in range(DEVICES)])

    def put(name: str, value: np.ndarray) -> tf.Tensor:
        entries = [dt.UNSHARDED] * value.ndim
        if name in SPLIT:
            entries[SPLIT[name]] = "model"
        whole = dt.copy_to_mesh(value, dt.Layout.replicated(mesh, rank=value.ndim))
        return dt.relayout(whole, dt.Layout(entries, mesh))

    w = {name: dt.DVariable(put(name, value)) for name, value in weights().items()}
    x, y = (put("", value) for value in data())

    @tf.function
    def step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        return train(w, lambda: loss_of(w, x, y))

    return Contestant(lambda: float(step(x, y)))


def whaleish(stated: bool) -> Contestant:
    """`split`; with the layouts of the other contestants, or with those that the planner finds."""
    import whaleish as wh

    wh.init(virtual_devices=DEVICES)
    w = {name: tf.Variable(value, name=name) for name, value in weights().items()}
    if stated:
        for name, variable in w.items():
            wh.layout(variable, f"S({SPLIT[name]})" if name in SPLIT else "B")
    x, y = map(tf.constant, data())

    @wh.function
    def step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        def loss() -> tf.Tensor:
            with wh.split():
                return loss_of(w, x, y)

        return train(w, loss)

    layouts = (f"{name} {layout[0]}" for name, layout in step.plan_for(x, y).variables if layout[0].is_split)
    return Contestant(lambda: float(step(x, y)), None, "" if stated else f"split are {', '.join(layouts)}")


BUILDERS: Builders = {
    "single": single,
    "dtensor": dtensor,
    "whaleish": lambda: whaleish(True),
    "whaleish-planned": lambda: whaleish(False),
}
