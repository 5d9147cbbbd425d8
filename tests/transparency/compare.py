"""One transparency case: the same steps on one device and under whaleish, and what each device held and did."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

import whaleish as wh
from tests.transparency import work, zoo
from tests.transparency.precision import computing_in
from whaleish.graph import layout_bytes
from whaleish.state import storage

STEPS = 5


@dataclass
class Outcome:
    """What came out of a case, on one rank.

    Attributes:
      losses, weights: largest differences from one device, relative to the largest value.
      work: per device, its share of the operations in products, of what one device does alone.
      stored: for each sharded variable, the largest share of it that a device stores.
      even: the same as an even division of its units would have it: 2 heads, 1 and 1 for 4 heads on 3 devices.
      shapes: of all tensors of the running function.
    """

    losses: float
    weights: float
    work: dict[str, float]
    stored: dict[str, float]
    even: dict[str, float]
    shapes: set[tuple[int | None, ...]]


def compare(model: str, scopes: str, optimizer: str, clip: bool, batch: int, dtype: str = "float64") -> Outcome:
    """Trains two equal nets, one on one device, and compares losses and all variables after `STEPS` steps."""
    with computing_in(dtype):
        return _compare(model, scopes, optimizer, clip, batch, dtype)


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
        even={v.name: _even_share(tuple(v.shape), storage(v)) for v in _sharded(program)},
        shapes=work.shapes(graph),
    )


def difference(a: Any, b: Any) -> float:
    a, b = np.asarray(a.numpy()), np.asarray(b.numpy())
    assert a.shape == b.shape
    if a.dtype.kind not in "f":
        return 0.0 if (a == b).all() else float("inf")
    return float(np.max(np.abs(a - b)) / max(1.0, float(np.max(np.abs(a)))))


def _sharded(program: Any) -> list[Any]:
    return [variable for variable in program.capture.variables if not storage(variable).whole]


def _stored(program: Any) -> dict[str, float]:
    """Measured on the storage itself, not on the layout."""
    found = {}
    for variable in _sharded(program):
        whole = layout_bytes(tuple(variable.shape), variable.dtype.name)
        sizes = [resource.read().numpy().nbytes for resource in variable.parts.resources]
        found[variable.name] = max(sizes) / whole
    return found


def _even_share(shape: tuple[int, ...], stored: Any) -> float:
    share = 1.0
    for axis, sbp in zip(stored.mesh.axes, stored.layout, strict=True):
        if sbp.is_split:
            units = shape[sbp.dim] // sbp.unit
            share *= -(-units // axis.size) / units
    return share
