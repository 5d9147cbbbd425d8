"""Transfers between ranks: what an actor made goes by Horovod to an actor in another process."""

from __future__ import annotations

import functools
import itertools
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import NamedTuple

import tensorflow as tf

from whaleish import tf_private
from whaleish.boxing.horovod import MOVED_AS
from whaleish.runtime import Aborted, ActorGraph, Transfer
from whaleish.writer import FunctionWriter

Kind = tuple[tuple[int, ...], str]
"""Shape and type of a tensor."""


class HorovodTransport:
    """Moves tensors between the processes of an actor graph, which are ranks: a broadcast among two for each tensor.

    Horovod brings together what has one name, and moves nothing before both halves are there: the receiver's asks, and
    the sender's answers. As its ops block the thread that runs them, an end is carried out by the thread that waits for
    it. Tensors without elements are not sent. (Each tensor beyond the first adds 0.3 ms; one message for all would take
    a copy at either end instead, and memory for it.)

    Args:
      graph: whose transfers these are.
      sets: of each two ranks that have one; see `transfer_sets`.
      expects: the tensors of a transfer, whose shapes may differ by its firing; the same on both ranks. A receiver has
        to know them before anything comes, and what a sender has is compared with them.
      prefix: begins the names by which Horovod matches; equal on all ranks, and of no other transport in use.
      device: on which tensors are received.
    """

    def __init__(
        self,
        graph: ActorGraph,
        sets: Mapping[tuple[int, int], int],
        expects: Callable[[Transfer], Sequence[Kind]],
        prefix: str,
        device: str = "/device:CPU:0",
    ) -> None:
        self._expects, self._prefix, self._device = expects, prefix, device
        self._routes: dict[str, tuple[int, int]] = {}  # receiver -> rank of its sender, number of the set of both
        for sender, receiver in graph.receiver_of.items():
            here, there = (graph.queue_of[end].process for end in (sender, receiver))
            if here == there:
                raise ValueError(
                    f"{sender!r} and {receiver!r} are both on rank {here}, and Horovod moves nothing within a rank: "
                    f"let whoever reads {receiver!r} read what {sender!r} reads"
                )
            self._routes[receiver] = here, sets[min(here, there), max(here, there)]
        self._functions: dict[_End, str] = {}
        self._lock = threading.Lock()
        self._aborted = False
        for sender, receiver in graph.receiver_of.items():
            self._kinds(Transfer(sender, receiver, 0, 0))  # what cannot be moved is an error before anything runs

    def __del__(self) -> None:
        for name in getattr(self, "_functions", {}).values():
            tf_private.remove_function(name)

    def post_receive(self, transfer: Transfer) -> Callable[[], Sequence[tf.Tensor]]:
        kinds = self._kinds(transfer)
        function, moved = self._function(transfer, kinds, sends=False)
        shapes = [tf.constant(_moved_as(kinds[number])[0], tf.int32) for number in moved]

        def receive() -> Sequence[tf.Tensor]:
            received = dict(zip(moved, tf_private.call_function(function, shapes, len(moved)), strict=True))
            with tf.device(self._device):
                return [received[k] if k in received else tf.zeros(*kind) for k, kind in enumerate(kinds)]

        return receive

    def post_send(self, transfer: Transfer, values: Sequence[tf.Tensor]) -> Callable[[], Sequence[tf.Tensor]]:
        kinds, tensors = self._kinds(transfer), [tf.convert_to_tensor(value) for value in values]
        given = [(tuple(tensor.shape), tensor.dtype.name) for tensor in tensors]
        if given != kinds:
            raise ValueError(
                f"{transfer.sender!r} has {_text(given)} at firing {transfer.firing}, and {transfer.receiver!r} "
                f"expects {_text(kinds)}; let the chunk make what was planned, or plan what it makes"
            )
        function, moved = self._function(transfer, kinds, sends=True)

        def send() -> Sequence[tf.Tensor]:
            tf_private.call_function(function, [tensors[number] for number in moved], 0)
            return tensors

        return send

    def wait(self, posted: Callable[[], Sequence[tf.Tensor]]) -> Sequence[tf.Tensor]:
        if self._aborted:
            raise Aborted
        return posted()

    def abort(self) -> None:
        """Waits that have not begun end; those within Horovod do when the other rank comes, or is gone.

        It is for good: ranks are no longer at the same transfers.
        """
        self._aborted = True

    def _kinds(self, transfer: Transfer) -> list[Kind]:
        kinds = [(tuple(shape), dtype) for shape, dtype in self._expects(transfer)]
        for _, dtype in kinds:
            if dtype not in _movable():
                raise TypeError(
                    f"{transfer.sender!r} is to send {_text(kinds)} to {transfer.receiver!r}. Horovod moves no "
                    f"{dtype}: make numbers of it ({', '.join(sorted(_movable()))}), or let one stage make and read it"
                )
        return kinds

    def _function(self, transfer: Transfer, kinds: Sequence[Kind], sends: bool) -> tuple[str, list[int]]:
        """The function of one end, and which tensors of the transfer it moves."""
        moved = [number for number, (shape, _) in enumerate(kinds) if prod(shape)]
        names = [_node_name(f"{self._prefix}.{transfer}.{number}") for number in moved]
        end = _End(sends, tuple(names), tuple(kinds[number][1] for number in moved), *self._routes[transfer.receiver])
        with self._lock:
            if end not in self._functions:
                self._functions[end] = _register(end, self._device)
            return self._functions[end], moved


class _End(NamedTuple):
    """One end of a transfer, whatever the shapes: what a function is written from.

    Attributes:
      names: of the broadcasts.
      root, set: the rank that sends, and Horovod's number of the set of both.
    """

    sends: bool
    names: tuple[str, ...]
    dtypes: tuple[str, ...]
    root: int
    set: int


_serial = itertools.count()


def _register(end: _End, device: str) -> str:
    """Writes the function of an end; returns its name.

    The sender's takes the tensors and returns nothing, the receiver's takes their shapes and returns them. So what a
    broadcast reads is an argument, or `Empty` in the shape that one gives, and TensorFlow holds no two of these to be
    equal. Unlike in a step, where it may read anything, nothing here can be folded or merged.
    """
    writer, outputs = FunctionWriter(), []
    for number, (name, dtype) in enumerate(zip(end.names, end.dtypes, strict=True)):
        moved_as = MOVED_AS.get(dtype, dtype)
        if end.sends:
            ref = writer.argument("tensor", dtype, None)
            if moved_as != dtype:
                (ref,) = writer.add("Bitcast", [ref], device=device, type=moved_as)
        else:
            shape = writer.argument("shape", "int32", None)
            (ref,) = writer.add("Empty", [shape], device=device, dtype=moved_as, init=False)
        (ref,) = writer.add(
            "HorovodBroadcast",
            [ref],
            name=name,
            device=device,
            root_rank=end.root,
            ignore_name_scope=True,
            process_set_id=end.set,
            _whaleish_number=number,
        )
        if moved_as != dtype:
            (ref,) = writer.add("Bitcast", [ref], device=device, type=dtype)
        outputs.append(ref)
    function = f"__whaleish_transfer_{next(_serial)}"
    tf_private.register_function(writer.finish(function, [] if end.sends else outputs, end.names))
    return function


@functools.cache
def _movable() -> frozenset[str]:
    """The types that Horovod broadcasts, and those that it does in the bits of another."""
    (attr,) = (attr for attr in tf_private.op_def("HorovodBroadcast").attr if attr.name == "T")
    return frozenset(MOVED_AS) | {tf.as_dtype(number).name for number in attr.allowed_values.list.type}


def _moved_as(kind: Kind) -> Kind:
    """What is moved in place of a tensor, as `Bitcast` makes it."""
    shape, dtype = kind
    moved_as = MOVED_AS.get(dtype, dtype)
    ratio = tf.as_dtype(dtype).size // tf.as_dtype(moved_as).size
    return (*shape, ratio) if ratio > 1 else shape, moved_as


def _node_name(text: str) -> str:
    """A text as the name of a node: what TensorFlow does not allow there as its number in Unicode."""
    return re.sub(r"[^A-Za-z0-9.>-]", lambda match: f"_{ord(match[0]):x}_", text)


def _text(kinds: Sequence[Kind]) -> str:
    return ", ".join(f"{dtype}{list(shape)}" for shape, dtype in kinds) or "no tensor"
