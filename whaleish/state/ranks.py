"""Variables that ranks hold in parts: reading them is a collective."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from whaleish.agreement import digest
from whaleish.meeting import AbsentError, DisagreementError, Meeting, all_gather
from whaleish.state import wire
from whaleish.state.parts import Parts, merge, owners

READ_TIMEOUT = 9.0
"""Seconds that a read waits for the other ranks before it raises."""

GATHER_TIMEOUT = 300.0
"""The same for `gather`, which all ranks are known to call."""

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
    flat = [variable_of(variable) for variable in tf.nest.flatten(variables)]
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


def variable_of(variable: Any) -> Any:
    """The `tf.Variable` of a Keras variable."""
    return variable if isinstance(variable, tf.Variable) else variable.value
