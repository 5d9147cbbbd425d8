"""Variables that must start out equal on all ranks: their values, or what will make them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import tensorflow as tf

from whaleish import world as world_
from whaleish.agreement import digest
from whaleish.meeting import DisagreementError, Meeting, broadcast, gather_rows, share
from whaleish.state import wire
from whaleish.state.assigned import forget_assigned
from whaleish.state.parts import owners
from whaleish.state.ranks import GATHER_TIMEOUT, collect, variable_of
from whaleish.state.recipe import Recipe

FUSED_BYTES = 32 << 20
"""Variables smaller than this travel together."""


def broadcast_from_chief(variables: Iterable[tf.Variable]) -> list[str]:
    """Makes variables start as on rank 0, where ranks differ; to be called by all ranks.

    Of variables in place the values are compared, by their hashes, so that ranks that started from the same seed send
    next to nothing. Of deferred ones the recipes are, which takes no memory; one that is deferred on some ranks only is
    made on the others. Variables in parts, and those of types without numbers (strings), are left alone.

    Args:
      variables: the same on all ranks, in the same order.

    Returns:
      The names of those that differed.
    """
    world = world_.world()
    own = [v for v in map(variable_of, variables) if wire.moves(v.dtype) and not getattr(v, "in_parts", False)]
    if not world.distributed or world.size == 1 or not own:
        return []
    what = "\n".join(f"{v.dtype.name} {v.shape}" for v in own)
    meeting: Meeting[list[str]] = Meeting.numbered("start", digest(what.encode()))

    def equalise(digests: list[bytes]) -> list[str]:
        if len(set(digests)) > 1:
            raise DisagreementError("ranks have different variables; here:\n" + what)
        rows = _gather_hashes(own, meeting.name)
        waits = rows[:, :, 0]
        mixed = [v for v, same in zip(own, (waits == waits[0]).all(axis=0), strict=True) if not same]
        if mixed:
            for variable in mixed:
                if is_deferred(variable):
                    variable.initialise()
            rows = _gather_hashes(own, f"{meeting.name}.again")
        differ = [v for v, same in zip(own, (rows == rows[0]).all(axis=(0, 2)), strict=True) if not same]
        _share_recipes([v for v in differ if is_deferred(v)], meeting.name)
        for index, group in enumerate(_fused([v for v in differ if not is_deferred(v)])):
            _broadcast(group, f"{meeting.name}.{index}")
        forget_assigned(own)
        return [v.name for v in differ]

    return meeting.attend(GATHER_TIMEOUT, equalise)


def is_deferred(variable: tf.Variable) -> bool:
    """Whether a variable has no value yet; those that TensorFlow makes always have."""
    return getattr(variable, "deferred", False)


def _gather_hashes(variables: Sequence[tf.Variable], name: str) -> np.ndarray:
    """By rank and variable: whether it is deferred, and the hash of its recipe or value."""
    hashes = [
        b"\1" + digest(v.recipe.text().encode())
        if is_deferred(v)
        else b"\0" + digest(wire.view(tf.convert_to_tensor(v)))
        for v in variables
    ]
    rows = gather_rows(f"{name}.hashes", np.frombuffer(b"".join(hashes), np.uint8))
    return rows.reshape(len(rows), len(variables), -1)


def _share_recipes(variables: Sequence[tf.Variable], name: str) -> None:
    """Gives deferred variables the recipes of rank 0."""
    if variables:
        mine = "\n".join(v.recipe.text() for v in variables) if world_.world().rank == 0 else ""
        texts = share(f"{name}.recipes", mine.encode())[0].decode().split("\n")
        for variable, text in zip(variables, texts, strict=True):
            variable.replace_recipe(Recipe.parse(text))


def equalise_copies(variables: Sequence[tf.Variable]) -> None:
    """Makes what ranks hold alike equal to the last bit, where it was made of equal recipes; all ranks must call it.

    Processors of different kinds may compute a logarithm differently, and copies that differ would drift apart.

    Args:
      variables: laid out, the same on all ranks, in the same order.
    """
    world = world_.world()
    if not world.distributed or world.size == 1 or not variables:
        return
    broadcast_from_chief(variables)
    copied = [v for v in variables if v.in_parts and len(owners(v.parts.mesh, v.parts.layout)) < v.parts.mesh.size]
    if not copied:
        return
    meeting: Meeting[None] = Meeting.numbered("copies", digest(str(len(copied)).encode()))

    def equalise(_: list[bytes]) -> None:
        hashes = [digest(wire.view(v.parts.read(v.parts.numbers[0])) if v.parts.numbers else b"") for v in copied]
        rows = gather_rows(f"{meeting.name}.hashes", np.frombuffer(b"".join(hashes), np.uint8))
        rows = rows.reshape(world.size, len(copied), -1)
        for index, variable in enumerate(copied):
            mesh, layout = variable.parts.mesh, variable.parts.layout
            by_part = [rows[mesh.device(part), index] for part in range(mesh.size)]
            first = [by_part[mesh.first_alike(part, layout)] for part in range(mesh.size)]
            if not np.array_equal(by_part, first):
                variable.parts.write(collect(variable.parts, f"{meeting.name}.{index}"))

    meeting.attend(GATHER_TIMEOUT, equalise)


def _fused(variables: Sequence[tf.Variable]) -> Iterator[list[tf.Variable]]:
    """Groups of variables that travel in one message: of one type, and of a limited size together."""
    by_type: dict[tf.DType, list[tf.Variable]] = {}
    for variable in variables:
        by_type.setdefault(variable.dtype, []).append(variable)
    for same in by_type.values():
        group: list[tf.Variable] = []
        filled = 0
        for variable in same:
            size = variable.dtype.size * math.prod(variable.shape)
            if group and filled + size > FUSED_BYTES:
                yield group
                group, filled = [], 0
            group.append(variable)
            filled += size
        yield group


def _broadcast(group: Sequence[tf.Variable], name: str) -> None:
    with tf.device("/device:CPU:0"):
        flat = [wire.encode(tf.identity(variable)) for variable in group]
        lengths = [int(part.shape[0]) for part in flat]
        received = broadcast(name, tf.concat(flat, 0) if len(flat) > 1 else flat[0])
        for variable, bits in zip(group, tf.split(received, lengths), strict=True):
            variable.assign(tf.reshape(wire.decode(bits, variable.dtype), variable.shape))
