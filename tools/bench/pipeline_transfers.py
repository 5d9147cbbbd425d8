"""Transfers between two of four hosts, with nothing else under way: whaleish's, and the same bytes by a bare socket.

The clock of all hosts is that of this machine; so a transfer's seconds go from the moment at which the sender has the
values to the one at which the receiver, which waits, has them.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import tensorflow as tf

SENDER, RECEIVER = 1, 2
NUMBERS = {"4 kB": 1 << 10, "393 kB": 2 * 64 * 768, "4 MB": 1 << 20}
"""How many float32 are moved; in the middle the activations of a micro-batch of the encoder."""

WARM, TIMES, PORT = 3, 20, 29600
PAUSE_S = 0.03


def measure() -> dict[str, Any]:
    """The seconds of single transfers, as the receiver has them; the difference to the socket's besides."""
    import horovod.tensorflow as hvd

    import whaleish as wh

    wh.init()
    end = _connect(wh.rank())
    found: dict[str, Any] = {}
    for name, count in NUMBERS.items():
        move = _transfers(count)
        seconds = _by_turns(end, wh.rank(), {"socket": partial(_through, end, wh.rank(), count), "whaleish": move})
        seconds["besides"] = [
            ours - theirs for ours, theirs in zip(seconds["whaleish"], seconds["socket"], strict=True)
        ]
        found |= {f"{name}: {kind}": {"seconds": own, "cpu": [0.0] * TIMES} for kind, own in seconds.items()}
    hvd.allreduce(tf.zeros(()), name="all done").numpy()  # a rank that ends takes its sets with it
    return found


def _transfers(count: int) -> Callable[[], Any]:
    """Carries out this rank's end of one transfer, if it has one."""
    from whaleish.process_sets import transfer_sets
    from whaleish.runtime import ActorGraph, ActorSpec, Queue, Transfer
    from whaleish.transfers import HorovodTransport
    from whaleish.world import world

    queues, specs = [], []
    for rank in range(world().size - 1):  # the neighbours of a pipeline, which all have sets of their own
        queues += [Queue(f"out {rank}", process=rank), Queue(f"in {rank + 1}", process=rank + 1)]
        specs.append(ActorSpec(f"send {rank}", f"out {rank}"))
        specs.append(ActorSpec(f"receive {rank + 1}", f"in {rank + 1}", receives=f"send {rank}"))
    graph = ActorGraph(tuple(specs), tuple(queues), 1)
    transport = HorovodTransport(
        graph, transfer_sets(graph, world()), lambda _: [((count,), "float32")], f"bench_{count}", world().devices[0]
    )
    transfer = Transfer(f"send {SENDER}", f"receive {RECEIVER}", 0, 0)
    values = [tf.zeros(count)]
    if world().rank == SENDER:
        return lambda: transport.wait(transport.post_send(transfer, values))
    return lambda: transport.wait(transport.post_receive(transfer))


def _connect(rank: int) -> socket.socket | None:
    """A connection between the two hosts, on both of them."""
    if rank == SENDER:
        with socket.create_server(("", PORT)) as server:
            end, _ = server.accept()
    elif rank == RECEIVER:
        address = os.environ["MASTER_ADDR"].rsplit(".", 1)[0] + f".{SENDER + 1}"
        end = _reach(address)
    else:
        return None
    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return end


def _reach(address: str) -> socket.socket:
    for _ in range(1000):
        try:
            return socket.create_connection((address, PORT))
        except ConnectionRefusedError:
            time.sleep(0.05)
    raise TimeoutError(f"nobody listens at {address}:{PORT}")


def _through(end: socket.socket | None, rank: int, count: int) -> None:
    assert end is not None
    if rank == SENDER:
        end.sendall(bytes(4 * count))
    else:
        _receive(end, 4 * count)


def _receive(end: socket.socket, size: int) -> bytearray:
    buffer = bytearray(size)
    view = memoryview(buffer)
    while view:
        view = view[end.recv_into(view) :]
    return buffer


def _by_turns(end: socket.socket | None, rank: int, kinds: dict[str, Callable[[], Any]]) -> dict[str, list[float]]:
    """For each kind the seconds of its transfers; on ranks that have none, zeros."""
    found: dict[str, list[float]] = {kind: [0.0] * TIMES for kind in kinds}
    if end is None:
        return found
    for number in range(-WARM, TIMES):
        for kind, move in kinds.items():
            if rank == SENDER:
                end.recv(1)  # the receiver is about to wait
                time.sleep(PAUSE_S)
                begun = time.perf_counter()
                move()
                end.sendall(struct.pack("d", begun))
            else:
                end.sendall(b"!")
                move()
                ended = time.perf_counter()
                (begun,) = struct.unpack("d", _receive(end, 8))
                if number >= 0:
                    found[kind][number] = ended - begun
    return found
