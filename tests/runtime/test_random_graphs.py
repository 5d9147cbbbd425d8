"""Any graph of chunks, with any registers and delays: it computes what it should within its registers, and drains."""

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.runtime.graphs import (
    LIMIT,
    Witness,
    examples,
    executor_of,
    feeds_of,
    graphs,
    hangs,
    is_transfer,
    plainly,
    within,
)
from whaleish.runtime import ActorGraph, DeadlockError, Read, executor
from whaleish.runtime.actor import Actor, make_actors


@examples(120)
@given(graphs(), st.integers(0, 99))
def test_runs(graph: ActorGraph, seed: int) -> None:
    witness, feeds = Witness(graph, seed), feeds_of(graph)
    made: list[Actor] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(executor, "make_actors", lambda *args: made.append(make_actors(*args)) or made[-1])
        runner = executor_of(graph, witness.chunks())
        if isinstance(runner, DeadlockError):
            assert _wants_more_registers(graph)
            return
        assert not _wants_more_registers(graph)
        assert within(LIMIT, lambda: runner.run(feeds)) == plainly(graph, feeds)
    for actor in made[0].values():  # it has drained
        assert (actor.fired, len(actor.free)) == (graph.firings(actor.name), actor.spec.registers)
        assert all(not port.filled for port in actor.ports)
        assert all((register.ref, register.firing) == (0, -1) for register in actor.free)
    for name, spec in graph.by_name.items():
        readers = [s.name for s in graph.actors for read in s.inputs if read[0] == name]
        if not any(is_transfer(graph, other) for other in [name, *readers]):
            assert witness.most_in_flight(name) <= spec.registers
    assert not [thread for thread in threading.enumerate() if thread.name in {q.name for q in graph.queues}]


def _wants_more_registers(graph: ActorGraph) -> bool:
    """Whether somebody reads all values of an actor, which it, or what it reads them with, cannot hold at once.

    That is the only way in which these graphs can stand still.
    """
    M = graph.micro_batches
    return any(
        isinstance(read, Read) and read.every and graph.by_name[read.actor].registers < M
        for spec in graph.actors
        for read in spec.inputs
    )


@examples(15)
@given(graphs(stuck=True))
def test_what_is_refused_would_have_hung(graph: ActorGraph) -> None:
    assert _wants_more_registers(graph)
    assert hangs(graph)
