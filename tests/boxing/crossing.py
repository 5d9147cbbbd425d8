"""Every layout change of a mesh, written by a boxer into one function, run, and held to the value that went in.

    value --cut--> parts --box--> parts --join--> value

A function holds all pairs of layouts of many values, as a step holds many boxings: so they also meet in groups.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tests.conformance.parts import cut, join
from whaleish import tf_private, world
from whaleish.boxing.boxer import Boxer
from whaleish.boxing.horovod import HorovodBoxer
from whaleish.boxing.local import LocalBoxer
from whaleish.boxing.route import route_volume
from whaleish.boxing.timed import TimedBoxer
from whaleish.mesh import Axis, Mesh
from whaleish.process_sets import process_sets
from whaleish.sbp import PMAX, PMIN, B, Layout, P, S, Sbp, format_layout
from whaleish.writer import FunctionWriter

Shape = tuple[int, ...]
SHAPES: list[Shape] = [(12, 4), (7, 5), (2, 3), (1, 6), (0, 3), (6, 12, 2)]
DTYPES = ["float32", "float64", "int32", "int64", "uint8", "uint32", "bool", "bfloat16", "float16", "complex64"]
# Summands are rounded one by one, so their sum is only as exact as the type.
_ROUNDING = {"float64": 1e-12, "float32": 1e-5, "complex64": 1e-5, "float16": 2e-2, "bfloat16": 2e-1}
_serial = itertools.count()


def layouts(shape: Shape, dtype: str, axis: Axis) -> list[Sbp]:
    """All layouts that a tensor can have: sums need numbers, extremes an order."""
    found = [B]
    for dim, unit in ((0, 1), (1, 1), (0, 2), (0, 3), (1, 4)):
        if shape[dim] % unit == 0:
            found.append(axis.normal(S(dim, unit), shape[dim]))
    if dtype != "bool":
        found.append(P)
    if dtype not in ("bool", "complex64", "uint8", "uint32"):  # what is less than an unsigned 0 would wrap
        found += [PMAX, PMIN]
    return list(dict.fromkeys(found))


def value_of(shape: Shape, dtype: str) -> np.ndarray:
    numbers = np.arange(int(np.prod(shape))).reshape(shape)
    if dtype == "complex64":
        return (numbers + 1j * (numbers % 3)).astype(dtype)
    return (numbers % (2 if dtype == "bool" else 60)).astype(tf.as_dtype(dtype).as_numpy_dtype)


def mesh_layouts(shape: Shape, dtype: str, mesh: Mesh) -> list[Layout]:
    """All layouts on one axis; on several the products of S(0), S(1), B and P, and a few with extremes."""
    if len(mesh.axes) == 1:
        return [(sbp,) for sbp in layouts(shape, dtype, mesh.axes[0])]
    extremes = [(PMAX, S(0)), (P, PMAX), (PMIN, P)]
    return [*itertools.product((S(0), S(1), B, P), repeat=len(mesh.axes)), *extremes]


class Crossing:
    """All boxings of some values among the layouts that they can have, for the parts that this process holds."""

    def __init__(
        self, mesh: Mesh, dtype: str, shapes: Sequence[Shape], parts: Sequence[int], seed: int = 0, every: int = 1
    ) -> None:
        """`every`: 3 takes each third boxing; TensorFlow takes long over functions with all of them."""
        self.mesh, self.dtype, self.parts = mesh, dtype, list(parts)
        rng = np.random.default_rng(seed)
        self.cases = []  # (value, source, target, the parts of the value in the source layout)
        for shape in shapes:
            value = value_of(shape, dtype)
            pairs = itertools.product(mesh_layouts(shape, dtype, mesh), repeat=2)
            for source, target in itertools.islice(pairs, 0, None, every):
                if source != target and route_volume(mesh, source, target, shape, 1.0) < float("inf"):
                    self.cases.append((value, source, target, cut(value, source, mesh.axes, rng)))

    def run(self, boxer: Boxer, given: Sequence[tf.Tensor] = (), calls: int = 1) -> list[list[np.ndarray]]:
        """For each case what each of this process's parts then holds.

        Args:
          given: the boxer's own arguments.
          calls: how often the function is run; the last time counts. What TensorFlow has folded hangs at the second.
        """
        writer, results, values = boxer.writer, [], []
        for value, source, target, held in self.cases:
            refs = []
            for part in self.parts:
                refs.append(writer.argument("part", self.dtype, held[part].shape))
                values.append(tf.convert_to_tensor(held[part]))
            results += boxer.box(refs, source, target, value.shape, 0)
        name = f"crossing_{next(_serial)}"
        outputs = [writer.add("Identity", [ref])[0] for ref in results]
        writer.finish(name, outputs, boxer.finish())
        tf_private.register_function(writer.function_def)
        for _ in range(calls):
            made = iter(tf_private.call_function(name, [*given, *values], len(outputs)))
        tf_private.remove_function(name)
        return [[next(made).numpy() for _ in self.parts] for _ in self.cases]

    def check(self, made: Sequence[Sequence[np.ndarray]]) -> int:
        """Holds what all parts of the mesh made to the values; returns the number of boxings."""
        for (value, source, target, _), parts in zip(self.cases, made, strict=True):
            layouts = f"{format_layout(source)} -> {format_layout(target)}"
            what = f"{self.dtype}{list(value.shape)} {layouts} on {self.mesh.text()}"
            for part, got in enumerate(parts):
                assert got.shape == self.mesh.local_shape(value.shape, target, part), f"{what}: part {part}"
                assert got.dtype == value.dtype, what
            whole = join(parts, target, self.mesh.axes)
            if not any(s.is_partial for s in source) and not any(s.kind == "P" for s in target):
                np.testing.assert_array_equal(whole, value, what)  # a move of bits
            else:
                close = _ROUNDING.get(self.dtype, 0)
                np.testing.assert_allclose(
                    whole.astype(np.complex128), value.astype(np.complex128), close, close, err_msg=what
                )
        return len(self.cases)


def cross_locally(mesh: Mesh, dtype: str, shapes: Sequence[Shape] = SHAPES, every: int = 1) -> int:
    """Boxes on the devices of this process; returns the number of boxings."""
    devices = [world.world().devices[mesh.device(part)] for part in range(mesh.size)]
    crossing = Crossing(mesh, dtype, shapes, range(mesh.size), every=every)
    return crossing.check(crossing.run(LocalBoxer(FunctionWriter(), mesh, range(mesh.size), devices)))


def cross_ranks(mesh: Mesh, dtype: str, shapes: Sequence[Shape] = SHAPES, every: int = 1):
    """Boxes between ranks; to be called on all. Returns this rank's parts, each with what it then holds of each case.

    All cut the same value with the same seed.
    """
    here, writer = world.world(), FunctionWriter()
    parts = [part for part in range(mesh.size) if mesh.device(part) == here.rank]
    guard = writer.argument("guard", "int32", ())
    name = "x".join(str(axis.size) for axis in mesh.axes)
    sets = process_sets(mesh, here)
    prefix = f"crossing{name}{dtype}"
    boxer = HorovodBoxer(writer, mesh, parts[0], here.devices[0], prefix, guard, sets)
    if len(parts) > 1:
        later = [boxer.beside(mesh, part, sets, f"{prefix}_{turn}") for turn, part in enumerate(parts[1:])]
        boxer = TimedBoxer(writer, mesh, [boxer, *later])
    made = Crossing(mesh, dtype, shapes, parts, every=every).run(boxer, [tf.constant(0, tf.int32)], calls=2)
    return list(zip(parts, zip(*made, strict=True), strict=True))
