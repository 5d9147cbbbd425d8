"""Variables that ranks hold in parts: reading them is a collective; and replicas that must start out equal."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from whaleish import world as world_
from whaleish.agreement import digest
from whaleish.meeting import AbsentError, DisagreementError, Meeting, all_gather, broadcast, gather_rows
from whaleish.state import wire
from whaleish.state.assigned import forget_assigned
from whaleish.state.parts import Parts, merge, owners

READ_TIMEOUT = 9.0
"""Seconds that a read waits for the other ranks before it raises."""

GATHER_TIMEOUT = 300.0
"""The same for `gather`, which all ranks are known to call, and for `broadcast_from_chief`."""

FUSED_BYTES = 32 << 20
"""Variables smaller than this travel together."""

_serials = itertools.count()


class Exchange:
    """Reads one variable whose parts lie on ranks, on all of them or on some.

    All ranks make their exchanges in the same order (that of the plan), those without a part too, so the serial names
    the variable.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._meeting: Meeting[tf.Tensor] = Meeting(f"whaleish.read.{next(_serials)}", b"read")

    @property
    def key(self) -> str:
        """Names the variable, on all ranks alike."""
        return self._meeting.name

    def __call__(self, parts: Parts) -> tf.Tensor:
        """The whole, on every rank.

        Raises:
          AbsentError: not all ranks read it within `READ_TIMEOUT` seconds of each other.
        """
        try:
            return self._meeting.attend(READ_TIMEOUT, lambda _: collect(parts, self._meeting.name))
        except AbsentError as error:
            raise AbsentError(
                f"{self._name} lies {parts.where()}, one device per rank, so all ranks must take part in reading it: "
                f"{error} To use it on one rank, call `wh.gather([variable])` on all ranks, outside any `if` on the "
                "rank, and use the result where it is wanted. To save it, call `wh.checkpoint.save` on all ranks."
            ) from None


def collect(parts: Parts, key: str) -> tf.Tensor:
    """The whole, on every rank, of parts that lie on different ranks. Blocks until all ranks call it."""
    mesh, layout = parts.mesh, parts.layout
    shapes = {part: mesh.local_shape(parts.shape, layout, part) for part in owners(mesh, layout)}
    width = wire.width(parts.dtype)
    with tf.device("/device:CPU:0"):
        mine = [wire.encode(parts.read(part)) for part in parts.numbers if part in shapes]
        sent = mine[0] if mine else wire.encode(tf.zeros([0], parts.dtype))
        received = all_gather(f"{key}.parts", sent)
        # They arrive by rank, which need not be the order of the mesh.
        order = sorted(shapes, key=lambda part: mesh.devices[part])
        pieces = tf.split(received, [width * math.prod(shapes[part]) for part in order])
        by_part = dict(zip(order, pieces, strict=True))
        del mine, sent, received, pieces
        return merge(mesh, layout, lambda part: tf.reshape(wire.decode(by_part.pop(part), parts.dtype), shapes[part]))


def gather(variables: Any) -> Any:
    """The values of variables, wherever their parts lie, as NumPy arrays; to be called by all ranks.

    Args:
      variables: a variable, or a nested structure of variables (Keras's included); equal on all ranks.

    Returns:
      The same structure, of arrays, on every rank.

    Raises:
      AbsentError: not all ranks called it.
      DisagreementError: ranks called it with other variables.
    """
    flat = [_variable(variable) for variable in tf.nest.flatten(variables)]
    spread = {id(variable): variable for variable in flat if getattr(variable, "on_several_ranks", False)}
    wholes = _gather(list(spread.values())) if spread else {}
    values = [wholes[id(variable)] if id(variable) in wholes else variable.numpy() for variable in flat]
    return tf.nest.pack_sequence_as(variables, values)


def _gather(spread: Sequence[Any]) -> dict[int, np.ndarray]:
    names = ", ".join(variable.name for variable in spread)
    # Names also depend on what else a rank has built; the order in which variables were laid out does not.
    which = ", ".join(variable.exchange.key for variable in spread)
    meeting: Meeting[dict[int, np.ndarray]] = Meeting.numbered("gather", digest(which.encode()))
    for variable in spread:
        variable.settle()

    def read(digests: list[bytes]) -> dict[int, np.ndarray]:
        if len(set(digests)) > 1:
            raise DisagreementError(f"ranks call wh.gather with different variables; here with {names}")
        return {id(v): collect(v.parts, f"{meeting.name}.{index}").numpy() for index, v in enumerate(spread)}

    try:
        return meeting.attend(GATHER_TIMEOUT, read)
    except AbsentError as error:
        raise AbsentError(f"all ranks must call wh.gather, with the same variables: {error}") from None


def broadcast_from_chief(variables: Iterable[tf.Variable]) -> list[str]:
    """Gives variables in place the values that they have on rank 0, where ranks differ; to be called by all ranks.

    Hashes are compared first, so that ranks that started from the same seed send next to nothing. Variables in parts,
    and those of types without numbers (strings), are left alone.

    Args:
      variables: the same on all ranks, in the same order.

    Returns:
      The names of those that differed.
    """
    world = world_.world()
    own = [v for v in map(_variable, variables) if wire.moves(v.dtype) and not getattr(v, "in_parts", False)]
    if not world.distributed or world.size == 1 or not own:
        return []
    what = "\n".join(f"{v.dtype.name} {v.shape}" for v in own)
    meeting: Meeting[list[str]] = Meeting.numbered("start", digest(what.encode()))

    def equalise(digests: list[bytes]) -> list[str]:
        if len(set(digests)) > 1:
            raise DisagreementError("ranks have different variables; here:\n" + what)
        # The row of a rank: the hash of each variable.
        rows = gather_rows(
            f"{meeting.name}.hashes",
            np.frombuffer(b"".join(digest(wire.view(tf.convert_to_tensor(v))) for v in own), np.uint8),
        )
        rows = rows.reshape(world.size, len(own), -1)
        differ = [v for v, same in zip(own, (rows == rows[0]).all(axis=(0, 2)), strict=True) if not same]
        for index, group in enumerate(_fused(differ)):
            _broadcast(group, f"{meeting.name}.{index}")
        forget_assigned(own)
        return [v.name for v in differ]

    return meeting.attend(GATHER_TIMEOUT, equalise)


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


def _variable(variable: Any) -> Any:
    """The `tf.Variable` of a Keras variable."""
    return variable if isinstance(variable, tf.Variable) else variable.value
