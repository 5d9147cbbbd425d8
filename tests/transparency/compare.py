"""One transparency case: the same steps on one device and under whaleish, and what each device held and did."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import whaleish as wh
from tests.transparency import work, zoo
from whaleish.graph import layout_bytes
from whaleish.state import storage

STEPS = 5


@dataclass
class Outcome:
    """What came out of a case, on one rank.

    Attributes:
      losses, weights: largest differences from one device, relative to the largest value.
      work: per device, its share of the operations in products, of what one device does alone.
      stored: for each sharded variable, the largest share of it that a device stores, in multiples of what an even
        division of its units would give: 2 heads, 1 and 1 are even for 4 heads on 3 devices.
      shapes: of all tensors of the running function.
    """

    losses: float
    weights: float
    work: dict[str, float]
    stored: dict[str, float]
    shapes: set[tuple[int | None, ...]]


def compare(model: str, scopes: str, optimizer: str, clip: bool, batch: int, dtype: str = "float64") -> Outcome:
    """Trains two equal nets, one on one device, and compares losses and all variables after `STEPS` steps."""
    before, policy = keras.backend.floatx(), keras.config.dtype_policy()
    keras.backend.set_floatx(dtype)
    keras.config.set_dtype_policy(dtype)  # Keras takes it from floatx at its first use only
    try:
        return _compare(model, scopes, optimizer, clip, batch, dtype)
    finally:
        keras.backend.set_floatx(before)
        keras.config.set_dtype_policy(policy)


def _compare(model: str, scopes: str, optimizer: str, clip: bool, batch: int, dtype: str) -> Outcome:
    alone, plain_step = zoo.make(model, optimizer, clip, "none")
    spread, step = zoo.make(model, optimizer, clip, scopes)
    plain, compiled = tf.function(plain_step), wh.function(step)
    rng = np.random.default_rng(5)
    losses = []
    for _ in range(STEPS):
        x, y = alone.draw(rng, batch)
        given = tf.constant(x.astype(dtype) if x.dtype.kind == "f" else x), tf.constant(y)
        losses.append((float(plain(*given)), float(compiled(*given))))
    program = compiled.program_for(*given)
    graph = work.running_graph(program)
    single = sum(work.product_flops(plain.get_concrete_function(*given).graph).values())
    return Outcome(
        losses=max(abs(a - b) for a, b in losses) / max(abs(a) for a, _ in losses),
        weights=max(map(difference, alone.all_variables, spread.all_variables)),
        work={device: done / single for device, done in work.product_flops(graph).items()},
        stored=_stored(program),
        shapes=work.shapes(graph),
    )


def difference(a: Any, b: Any) -> float:
    a, b = np.asarray(a.numpy()), np.asarray(b.numpy())
    assert a.shape == b.shape
    if a.dtype.kind not in "f":
        return 0.0 if (a == b).all() else float("inf")
    return float(np.max(np.abs(a - b)) / max(1.0, float(np.max(np.abs(a)))))


def _stored(program: Any) -> dict[str, float]:
    """Measured on the storage itself, not on the layout."""
    found = {}
    for variable in program.capture.variables:
        stored = storage(variable)
        if not stored.whole:
            whole = layout_bytes(tuple(variable.shape), variable.dtype.name)
            sizes = [resource.read().numpy().nbytes for resource in variable.parts.resources]
            found[variable.name] = max(sizes) / whole / _even_share(tuple(variable.shape), stored)
    return found


def _even_share(shape: tuple[int, ...], stored: Any) -> float:
    share = 1.0
    for axis, sbp in zip(stored.mesh.axes, stored.layout, strict=True):
        if sbp.is_split:
            units = shape[sbp.dim] // sbp.unit
            share *= -(-units // axis.size) / units
    return share
