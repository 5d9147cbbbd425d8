"""Transfers between disjoint groups of devices move the value right, and what they send is the table's."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.conformance.parts import cut, join
from whaleish import tf_private, world
from whaleish.boxing.horovod import EVERYBODY, HorovodBoxer, Sets
from whaleish.boxing.local import LocalBoxer
from whaleish.boxing.transfer import Transfer
from whaleish.mesh import Axis, Mesh
from whaleish.process_sets import process_sets
from whaleish.sbp import B, P, S
from whaleish.writer import FunctionWriter

GROUPS = [(1, 2), (2, 1), (2, 2), (2, 3)]
SHAPES = [(12, 6), (5, 3), (1, 2)]
KINDS = {"S0": S(0), "S1": S(1), "B": B, "P": P}


def volume(source: str, target: str, p1: int, p2: int) -> int:
    """Table 2 of the OneFlow paper for disjoint devices, in multiples of the tensor."""
    if source == "P":
        return p1 + p2 - 1 if target == "B" else p1
    return p2 if target == "B" else 1


@pytest.mark.parametrize(("p1", "p2"), GROUPS)
@pytest.mark.parametrize(("source", "target"), itertools.product(KINDS, KINDS))
def test_volumes(source: str, target: str, p1: int, p2: int) -> None:
    mesh = Mesh((Axis("a", p1),), tuple(range(p1)))
    after = Mesh((Axis("b", p2),), tuple(range(p1, p1 + p2)))
    transfer = Transfer(mesh, (KINDS[source],), after, (KINDS[target],), (12, 6))
    assert transfer.volume(72.0) == pytest.approx(72.0 * volume(source, target, p1, p2))


def meshes(p1: int, p2: int) -> tuple[Mesh, Mesh]:
    return Mesh((Axis("a", p1),), tuple(range(p1))), Mesh((Axis("b", p2),), tuple(range(p1, p1 + p2)))


def transfers(mesh: Mesh, after: Mesh) -> list[tuple[Transfer, np.ndarray, list[np.ndarray]]]:
    """All pairs of layouts and shapes, with a value and its parts."""
    rng, found = np.random.default_rng(0), []
    for shape, source, target in itertools.product(SHAPES, KINDS.values(), KINDS.values()):
        value = np.arange(float(np.prod(shape))).reshape(shape)
        layouts = ((source,) * len(mesh.axes), (target,) * len(after.axes))
        transfer = Transfer(mesh, layouts[0], after, layouts[1], shape)
        found.append((transfer, value, cut(value, layouts[0], mesh.axes, rng)))
    for source, target in itertools.product((B, P), repeat=2):  # a number has no dim to split
        layouts = ((source,) * len(mesh.axes), (target,) * len(after.axes))
        value = np.array(3.0)
        found.append((Transfer(mesh, layouts[0], after, layouts[1], ()), value, cut(value, layouts[0], mesh.axes, rng)))
    return found


def check(made: list[list[Any]], cases: list[Any]) -> None:
    for (transfer, value, _), parts in zip(cases, made, strict=True):
        whole = join([np.asarray(part) for part in parts], transfer.target, transfer.after.axes)
        np.testing.assert_allclose(whole, value, atol=1e-9, err_msg=f"{transfer}")


def locally(mesh: Mesh, after: Mesh) -> None:
    writer, names, cases = FunctionWriter(), world.world().devices, transfers(mesh, after)
    boxer = LocalBoxer(writer, mesh, range(mesh.size), [names[d] for d in mesh.devices])
    values, results = [], []
    for transfer, _, parts in cases:
        refs = [writer.argument("part", "float64", part.shape) for part in parts]
        values += map(tf.constant, parts)
        results += boxer.transfer(refs, transfer, names)
    outputs = [writer.add("Identity", [ref])[0] for ref in results]
    tf_private.register_function(writer.finish("transfers", outputs, boxer.finish()))
    made = iter(tf_private.call_function("transfers", values, len(outputs)))
    tf_private.remove_function("transfers")
    check([[next(made).numpy() for _ in range(after.size)] for _ in cases], cases)


@pytest.mark.parametrize("world_of", [4], indirect=True)
@pytest.mark.parametrize(("p1", "p2"), [(1, 2), (2, 1), (2, 2), (1, 3)])
def test_in_one_process(world_of: int, p1: int, p2: int) -> None:
    locally(*meshes(p1, p2))


@pytest.mark.parametrize("world_of", [4], indirect=True)
def test_between_meshes_of_other_shapes_on_the_same_devices(world_of: int) -> None:
    square = Mesh((Axis("x", 2), Axis("y", 2)))
    locally(square, Mesh((Axis("d", 4),)))
    locally(Mesh((Axis("d", 4),)), square)
    locally(Mesh((Axis("d", 3),)), Mesh((Axis("x", 2), Axis("y", 2)), (3, 1, 0, 2)))


def on_rank(p1: int, p2: int) -> list[Any]:
    """This rank's parts of all cases, where it is a consumer."""
    mesh, after = meshes(p1, p2)
    here, writer, cases = world.world(), FunctionWriter(), transfers(mesh, after)
    everybody = Mesh((Axis("d", here.size),))
    guard = writer.argument("guard", "int32", ())
    boxer = HorovodBoxer(writer, everybody, here.rank, here.devices[0], f"transfers{p1}{p2}", guard)
    sides = Mesh((Axis("side", 2), Axis("b", 2))) if (p1, p2) == (2, 2) else None
    inner = process_sets(sides, here).along[1] if sides else EVERYBODY
    sets = Sets((inner,), inner)
    values, results = [tf.constant(0, tf.int32)], []
    for transfer, _, parts in cases:
        ref = None
        if here.rank < p1:
            ref = writer.argument("part", "float64", parts[here.rank].shape)
            values.append(tf.constant(parts[here.rank]))
        made = boxer.transfer(ref, "float64", transfer, EVERYBODY, sets)
        results += [] if made is None else [made]
    outputs = [writer.add("Identity", [ref])[0] for ref in results]
    tf_private.register_function(writer.finish(f"transfers{p1}{p2}", outputs, boxer.finish()))
    for _ in range(2):
        made = tf_private.call_function(f"transfers{p1}{p2}", values, len(outputs))
    return [part.numpy() for part in made or []]


@pytest.mark.ranks
@pytest.mark.parametrize(("ranks", "p1", "p2"), [(4, 2, 2), (2, 1, 1)], indirect=["ranks"])
def test_on_real_ranks(ranks, p1: int, p2: int) -> None:
    found = ranks.run(on_rank, p1, p2, timeout=120)[p1:]
    check([list(parts) for parts in zip(*found, strict=True)], transfers(*meshes(p1, p2)))
