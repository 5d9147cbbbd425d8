"""Transfers between real ranks: every type and shape, both directions at once, and the results of one process."""

import dataclasses
import random
import re
import textwrap
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from whaleish.runtime import (
    AFTER,
    BEFORE,
    EACH,
    ActorGraph,
    ActorSpec,
    Chunk,
    Executor,
    Feed,
    Queue,
    Read,
    Transfer,
)

LIMIT = 90.0
"""Seconds for everything that a test does on its ranks."""

MOVED = {
    "bool",
    "uint8",
    "int8",
    "uint16",
    "int16",
    "uint32",
    "int32",
    "uint64",
    "int64",
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "complex64",
    "complex128",
}
SHAPES = [(), (1,), (7,), (3, 5), (0,), (4, 0, 2)]


def ends(sender: int, receiver: int) -> ActorGraph:
    """Nothing but a transfer from one rank to another, with names that TensorFlow does not take as they are."""
    queues = Queue("out", process=sender), Queue("in", process=receiver)
    return ActorGraph((ActorSpec("a b", "out"), ActorSpec("c/d_é", "in", receives="a b")), queues, 1)


def moved(graph: ActorGraph, prefix: str, firings: list[list[np.ndarray]]) -> list[list[Any]] | None:
    """Sends lists of tensors one after the other under one name; returns what the receiver gets, None elsewhere."""
    import tensorflow as tf

    import whaleish.world
    from whaleish.process_sets import transfer_sets
    from whaleish.transfers import HorovodTransport

    def expects(transfer: Transfer) -> list[Any]:
        return [(value.shape, value.dtype.name) for value in firings[transfer.firing]]

    world = whaleish.world.world()
    transport = HorovodTransport(graph, transfer_sets(graph, world), expects, prefix, world.devices[0])
    received = []
    for firing, values in enumerate(firings):
        transfer = Transfer("a b", "c/d_é", 0, firing)
        if graph.queue_of["a b"].process == world.rank:
            made = {id(value): tf.constant(value) for value in values}
            tensors = [made[id(value)] for value in values]
            sent = transport.wait(transport.post_send(transfer, tensors))
            assert [id(tensor) for tensor in sent] == [id(tensor) for tensor in tensors]
        if graph.queue_of["c/d_é"].process == world.rank:
            received.append([tensor.numpy() for tensor in transport.wait(transport.post_receive(transfer))])
    return received if received else None


def values(dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    import tensorflow as tf

    numbers = np.random.default_rng(0).integers(0, 2 if dtype == "bool" else 100, shape)
    return np.asarray(numbers).astype(tf.as_dtype(dtype).as_numpy_dtype)


def test_every_type_and_shape(ranks) -> None:
    """All at once, one by one under one name, and the same tensor twice; in either direction."""

    def run() -> list[Any]:
        from whaleish.transfers import _movable

        assert _movable() == MOVED
        every = [values(dtype, shape) for dtype in sorted(MOVED) for shape in SHAPES]
        empty = [value for value in every if not value.size]
        firings = [every, *[[value] for value in every], [every[3], every[3]], [], empty, every]
        return [firings, *(moved(ends(*pair), "types", firings) for pair in ((0, 1), (1, 0), (0, 1)))]

    for rank, (firings, *received) in enumerate(ranks.run(run, timeout=LIMIT)):
        assert [got is not None for got in received] == [rank == 1, rank == 0, rank == 1]
        for got in filter(None, received):
            for mine, theirs in zip(got, firings, strict=True):
                assert [value.dtype for value in mine] == [value.dtype for value in theirs]
                for one, other in zip(mine, theirs, strict=True):
                    np.testing.assert_array_equal(one, other, strict=True)


def test_nothing_runs_before_what_is_wrong_is_told(ranks) -> None:
    def run() -> list[str]:
        import tensorflow as tf

        import whaleish.world
        from whaleish.process_sets import transfer_sets
        from whaleish.transfers import HorovodTransport

        world, graph, found = whaleish.world.world(), ends(0, 1), []

        def told(what: Callable[[], Any]) -> None:
            try:
                what()
            except Exception as error:
                found.append(f"{type(error).__name__}: {error}")

        sets, transfer = transfer_sets(graph, world), Transfer("a b", "c/d_é", 0, 2)
        for kind in ("string", "variant"):
            told(lambda kind=kind: HorovodTransport(graph, sets, lambda _: [((2,), "int32"), ((), kind)], "wrong"))
        transport = HorovodTransport(graph, sets, lambda _: [((2,), "int32")], "wrong")
        told(lambda: transport.post_send(transfer, [tf.zeros([3], tf.int32), tf.constant("x")]))
        told(lambda: transport.post_send(transfer, []))
        told(lambda: HorovodTransport(ends(1, 1), transfer_sets(ends(1, 1), world), lambda _: [], "wrong"))
        told(lambda: transfer_sets(ends(0, 2), world))
        posted = transport.post_receive(transfer)
        transport.abort()
        told(lambda: transport.wait(posted))
        return found

    for found in ranks.run(run, timeout=LIMIT):
        for text, kind in zip(found, ["string", "variant"], strict=False):
            said = rf"TypeError: 'a b' is to send int32\[2\], {kind}\[\] to 'c/d_é'\. Horovod moves no {kind}: make"
            assert re.match(said, text)
        assert found[2:] == [
            "ValueError: 'a b' has int32[3], string[] at firing 2, and 'c/d_é' expects int32[2]; let the chunk make "
            "what was planned, or plan what it makes",
            "ValueError: 'a b' has no tensor at firing 2, and 'c/d_é' expects int32[2]; let the chunk make what was "
            "planned, or plan what it makes",
            "ValueError: 'a b' and 'c/d_é' are both on rank 1, and Horovod moves nothing within a rank: let whoever "
            "reads 'c/d_é' read what 'a b' reads",
            "ValueError: the actors' queues are in process 2, and there are 2 ranks, from 0: start more, or put the "
            "queues into those that there are",
            "Aborted: the run has ended, and this transfer has not taken place",
        ]


@dataclasses.dataclass
class Chain:
    """Chunks that make tensors out of those of the chunks before them, each on some rank.

    Attributes:
      kinds: the shapes and types that a firing of a chunk makes.
    """

    graph: ActorGraph
    chunks: dict[str, Chunk]
    feeds: dict[str, list[Any]]
    kinds: dict[str, Callable[[int], list[Any]]]

    def expects(self, transfer: Transfer) -> list[Any]:
        """What the sender reads."""
        kinds = [
            self.kinds[read.actor](transfer.firing)[read.output] for read in self.graph.by_name[transfer.sender].inputs
        ]
        return [(shape, dtype) for shape, dtype in kinds]

    def in_one_process(self) -> dict[Read, list[Any]]:
        queues = tuple(dataclasses.replace(queue, process=0) for queue in self.graph.queues)
        return Executor(dataclasses.replace(self.graph, queues=queues), self.chunks).run(self.feeds)


TYPES = ["float32", "float64", "bfloat16", "int32", "int64", "bool", "complex64", "uint8", "int16"]


def make_chain(seed: int, size: int, route: list[int] | None = None, longest: float = 0.004) -> Chain:
    """A chain with random registers, types, widths, delays, and micro-batches of uneven length, some of them empty.

    A stage makes two tensors with a row for each sample, a number, and what goes on holding nothing. Some stages read
    what the one before the last made, too. What all read is made once, before; a sum over all is read once, after.
    """
    import tensorflow as tf

    draw = random.Random(seed)
    micro_batches = draw.randint(1, 6)
    batch = draw.randint(1, 3 * micro_batches)
    rows = [batch // micro_batches + (k < batch % micro_batches) for k in range(micro_batches)]
    route = route or [draw.randrange(size) for _ in range(draw.randint(2, 6))]
    actors: list[ActorSpec] = []
    queues: dict[str, Queue] = {f"rank {rank}": Queue(f"rank {rank}", process=rank) for rank in range(size)}
    chunks: dict[str, Chunk] = {}
    kinds: dict[str, Callable[[int], list[Any]]] = {}

    def read(name: str, outputs: int, source: int, target: int, phase: str) -> list[Read]:
        """All that an actor made, on another rank."""
        if source == target:
            return [Read(name, k) for k in range(outputs)]
        send, receive = f"send {name} {len(actors)}", f"receive {name} {len(actors)}"
        queues[send], queues[receive] = Queue(send, process=source), Queue(receive, process=target)
        actors.append(ActorSpec(send, send, tuple(Read(name, k) for k in range(outputs)), phase))
        actors.append(ActorSpec(receive, receive, (), phase, draw.randint(1, 3), receives=send))
        return [Read(receive, k) for k in range(outputs)]

    def add(name: str, rank: int, inputs: list[Any], phase: str, chunk: Chunk) -> None:
        actors.append(ActorSpec(name, f"rank {rank}", tuple(inputs), phase, draw.randint(1, 3)))
        chunks[name] = chunk

    def stage(name: str, width: int, types: list[str]) -> Callable[..., list[Any]]:
        delays = [draw.choice([0.0, longest * draw.random()]) for _ in rows]
        kinds[name] = lambda firing: [
            *[((rows[firing], width), dtype) for dtype in types],
            ((), "int64"),
            ((0, 3), "float32"),
        ]

        def work(inputs: list[Any], firing: int) -> list[Any]:
            time.sleep(delays[firing])
            numbers = [tf.reduce_sum(tf.cast(tf.math.real(x) if x.dtype.is_complex else x, "float64")) for x in inputs]
            total = tf.math.floormod(tf.add_n(numbers) + firing, 97.0)
            each = tf.reshape(tf.range(rows[firing] * width, dtype="float64"), [rows[firing], width]) + total
            made = [tf.cast(tf.math.floormod(each, 2.0 if dtype == "bool" else 101.0), dtype) for dtype in types]
            return [*made, tf.cast(total, "int64"), tf.zeros([0, 3])]

        return work

    kinds["weights"] = lambda firing: [((5, 2), "bfloat16")]
    add("weights", route[0], [], BEFORE, Chunk(lambda *_: [tf.cast(tf.reshape(tf.range(10.0), [5, 2]), "bfloat16")]))
    for number, rank in enumerate(route):
        inputs: list[Any] = read("weights", 1, route[0], rank, BEFORE) if draw.random() < 0.5 else []
        inputs += [Feed("batch")] if number == 0 else read(f"stage {number - 1}", 4, route[number - 1], rank, EACH)
        if number > 1 and draw.random() < 0.5:
            inputs += read(f"stage {number - 2}", 4, route[number - 2], rank, EACH)
        name = f"stage {number}"
        add(name, rank, inputs, EACH, Chunk(stage(name, draw.randint(1, 40), draw.sample(TYPES, 2))))
    last = f"stage {len(route) - 1}"
    kinds["sum"] = kinds["end"] = lambda firing: [((), "int64")]
    sum_of = Chunk(lambda inputs, _: [inputs[0] + inputs[1]], lambda: [tf.constant(0, "int64")])
    add("sum", route[-1], [Read(last, 2)], EACH, sum_of)
    add("end", route[-1], [Read("sum")], AFTER, Chunk(lambda inputs, _: [inputs[0]]))
    add("told", route[0], read("end", 1, route[-1], route[0], AFTER), AFTER, Chunk(lambda inputs, _: [2 * inputs[0]]))
    results = (*(Read(f"stage {number}", k) for number in range(len(route)) for k in range(4)), Read("told"))
    graph = ActorGraph(tuple(actors), tuple(queues.values()), micro_batches, results=results)
    feeds = {"batch": [tf.range(count, dtype="float32") for count in rows]}
    return Chain(graph, chunks, feeds, kinds)


def run_chain(chain: Chain, prefix: str, runs: int) -> int:
    """Runs the actors of this rank some times in a row; returns how many results were compared with one process's."""
    import whaleish.world
    from whaleish.process_sets import transfer_sets
    from whaleish.transfers import HorovodTransport

    world = whaleish.world.world()
    expected = chain.in_one_process()
    graph, sets = chain.graph, transfer_sets(chain.graph, world)
    transport = HorovodTransport(graph, sets, chain.expects, prefix, world.devices[0])
    mine = {name: chunk for name, chunk in chain.chunks.items() if graph.queue_of[name].process == world.rank}
    executor = Executor(graph, mine, process=world.rank, transport=transport)
    compared = 0
    for _ in range(runs):
        for read, found in executor.run(chain.feeds).items():
            for one, other in zip(found, expected[read], strict=True):
                np.testing.assert_array_equal(one.numpy(), other.numpy(), str(read), strict=True)
                compared += 1
    return compared


@pytest.mark.parametrize("ranks", [2, 3], indirect=True)
def test_chains_give_the_results_of_one_process(ranks) -> None:
    size = ranks.size

    def run() -> list[int]:
        return [run_chain(make_chain(seed, size), f"chain{seed}", runs=3) for seed in range(12)]

    compared = ranks.run(run, timeout=LIMIT)
    assert all(sum(of_seed) > 0 for of_seed in zip(*compared, strict=True))
    assert all(sum(of_rank) > 100 for of_rank in compared)


@pytest.mark.parametrize("ranks", [2, 3], indirect=True)
def test_both_directions_at_once(ranks) -> None:
    """There and back, again and again: each rank sends to and receives from the other in threads of their own."""
    route = [*range(ranks.size), *reversed(range(ranks.size))] * 2

    def run() -> list[int]:
        return [run_chain(make_chain(seed, size, route, 0.0), f"there_and_back{seed}", runs=4) for seed in range(3)]

    size = ranks.size
    assert all(count for of_rank in ranks.run(run, timeout=LIMIT) for count in of_rank)


FAILS = textwrap.dedent(
    """
    import sys, time
    import tensorflow as tf
    import whaleish as wh
    from whaleish.process_sets import transfer_sets
    from whaleish.runtime import ActorGraph, ActorSpec, Chunk, Executor, Queue, Read, StageError
    from whaleish.transfers import HorovodTransport
    from whaleish.world import world

    def fails(inputs, firing):
        if firing == 2:
            time.sleep(1)  # until the receiver waits for the next micro-batch
            raise ZeroDivisionError("no")
        return inputs

    wh.init()
    names = ("0", "0 out", "0 in", "1", "1 in", "1 out")
    graph = ActorGraph(
        (
            ActorSpec("forward", "0"),
            ActorSpec("send there", "0 out", (Read("forward"),)),
            ActorSpec("receive there", "1 in", registers=2, receives="send there"),
            ActorSpec("loss", "1", (Read("receive there"),), stage=1),
            ActorSpec("send back", "1 out", (Read("loss"),)),
            ActorSpec("receive back", "0 in", receives="send back"),
            ActorSpec("backward", "0", (Read("forward"), Read("receive back"))),
        ),
        tuple(Queue(name, process=int(name[0])) for name in names),
        6,
    )
    works = [{"forward": lambda *_: [tf.ones([3])], "backward": lambda *_: []}, {"loss": fails}]
    sets = transfer_sets(graph, world())
    transport = HorovodTransport(graph, sets, lambda _: [((3,), "float32")], "fails", world().devices[0])
    chunks = {name: Chunk(work) for name, work in works[world().rank].items()}
    runner = Executor(graph, chunks, process=world().rank, transport=transport, patience=0.5)
    began = time.monotonic()
    try:
        runner.run()
    except StageError as error:
        seconds = time.monotonic() - began
        notes = getattr(error, "__notes__", [])
        print(f"rank {world().rank}: {error}; {notes}; after {seconds:.1f} s", flush=True)
        sys.exit(3)
    """
)


def test_a_chunk_that_fails_on_one_rank_ends_the_job() -> None:
    """Though that rank waits in Horovod for what never comes: the other is to get something from it first."""
    from tests.cluster.harness import run_script

    result = run_script(2, FAILS, timeout=LIMIT)
    assert not result.timed_out
    assert result.status != 0
    assert not result.survivors
    told = re.search(
        r"rank 1: chunk 'loss' of stage 1 failed at micro-batch 2, .*: ZeroDivisionError: no; "
        r"\[\"queue '1 in' has not ended within 0\.5 s: its chunk still runs\"\]; after (.*) s",
        result.output,
    )
    assert told, result.output
    assert float(told[1]) < 10
    print(result.output, result.seconds)
