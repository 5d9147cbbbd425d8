"""Actor graphs as values, registers, and the state machine of an actor, without threads."""

from typing import Any

import pytest

from whaleish.runtime import AFTER, BEFORE, ActorGraph, ActorSpec, DeadlockError, Feed, Firing, Queue, Read, check
from whaleish.runtime.actor import make_actors
from whaleish.runtime.bus import DirectBus
from whaleish.runtime.register import Register, RegisterError

A, B = ActorSpec("a", "q"), ActorSpec("b", "q", (Read("a"),))
Q = Queue("q")


@pytest.mark.parametrize(
    ("graph", "said"),
    [
        (((A, A), (Q,)), "there are 2 actors 'a'"),
        (((A,), (Q, Q)), "there are 2 queues 'q'"),
        (((B,), (Q,)), "'b' reads from 'a', which is no actor"),
        (((ActorSpec("a", "p"),), (Q,)), "'a' is on queue 'p', which is none of 'q'"),
        (((ActorSpec("a", "q", phase="often"),), (Q,)), "phase 'often'; phases are 'before', 'each' and 'after'"),
        (((A,), (Q,), 0), "there are 0 micro-batches; there is at least one"),
        (((ActorSpec("a", "q", registers=0),), (Q,)), "'a' has 0 registers; it needs at least one"),
        (
            ((A, ActorSpec("b", "q", (Read("a"),), BEFORE)), (Q,)),
            r"'b' \(before\) reads .* fires later \(each\)",
        ),
        (((ActorSpec("a", "q", phase=AFTER), B), (Q,)), r"'b' \(each\) reads from 'a', which fires later \(after\)"),
        (((A, ActorSpec("b", "q", (Read("a", every=True),))), (Q,)), "every value of 'a', but not once after"),
        (
            ((A, ActorSpec("b", "p", (Read("a"),))), (Q, Queue("p", process=1))),
            "in another process; put a transfer",
        ),
        (((ActorSpec("a", "q", receives="a"),), (Q,)), "'a' receives from 'a', which receives itself"),
        (((A, ActorSpec("b", "p", (Feed("x"),), receives="a")), (Q, Queue("p"))), "receives, and so has no inputs"),
        (
            ((A, ActorSpec("b", "p", (), AFTER, receives="a")), (Q, Queue("p"))),
            "of a transfer, differ in phase",
        ),
        (
            ((A, ActorSpec("b", "p", receives="a"), ActorSpec("c", "r", receives="a")), (Q, Queue("p"), Queue("r"))),
            "'a' sends to 'b' and 'c'; give each a sender of its own",
        ),
        (
            ((A, ActorSpec("b", "p", receives="a"), ActorSpec("c", "r", (Read("a"),))), (Q, Queue("p"), Queue("r"))),
            "'c' reads from 'a', which sends; read from 'b'",
        ),
        (
            ((A, ActorSpec("b", "q", receives="a")), (Q,)),
            r"'a' waits for 'b' within a firing, .* ordered",
        ),
        (((A, B), (Q,), 2, (("a", "b"),)), "the group a, b has two on one queue"),
        (((A,), (Q,), 2, (("a", "z"),)), "'z' of a group is no actor"),
        (((A, ActorSpec("b", "p", phase=AFTER)), (Q, Queue("p")), 2, (("a", "b"),)), "a, b has different phases"),
        (((A, ActorSpec("b", "p")), (Q, Queue("p")), 2, (("a", "b"), ("b", "a"))), "'a' is in 2 groups"),
        (((A,), (Q,), 2, (), (Read("z"),)), "the result 'z' is no actor"),
        (((A,), (Q,), 2, (), (Read("a", every=True),)), "all values of a result are returned anyway"),
        (((A,), (Queue("q", ordered=True),)), "the order of queue 'q' lacks 'a' at 0; .* lacks 'a' at 1"),
        (((A,), (Queue("q", (Firing("a", 0),) * 2),)), "has 'a' at 0 1 times too often; .* lacks 'a' at 1"),
        (((A,), (Queue("q", (Firing("a", 1), Firing("a", 0))),)), r"has 'a' at \[1, 0\]; its firings go upwards"),
        (((ActorSpec("a", "q", (Feed("x"),)), ActorSpec("b", "q", (Feed("x"),), AFTER)), (Q,)), "give it two names"),
    ],
)
def test_what_cannot_run(graph: tuple[Any, ...], said: str) -> None:
    with pytest.raises(ValueError, match=f"^these actors cannot run: .*{said}"):
        ActorGraph(*(*graph, 2)[:3] if len(graph) == 2 else graph)


def test_a_circle_of_reads() -> None:
    actors = (ActorSpec("a", "q", (Read("c"),)), B, ActorSpec("c", "q", (Read("b"),)))
    with pytest.raises(DeadlockError) as caught:
        check(ActorGraph(actors, (Q,), 1))
    assert str(caught.value) == (
        "these actors would wait for each other for ever:\n"
        "  'a' at micro-batch 0 waits for an output of 'c'\n"
        "  'c' at micro-batch 0 waits for an output of 'b'\n"
        "  'b' at micro-batch 0 waits for an output of 'a'\n"
        "To break the circle, let one of them not read, directly or through others, what it makes itself"
    )


def test_groups_that_meet_in_different_orders() -> None:
    """The first device begins with one collective, the second with the other."""
    actors = tuple(ActorSpec(f"{name}{k}", f"q{k}") for name in "ab" for k in range(2))
    orders = [[Firing("a0", 0), Firing("b0", 0)], [Firing("b1", 0), Firing("a1", 0)]]
    queues = tuple(Queue(f"q{k}", tuple(order), ordered=True) for k, order in enumerate(orders))
    with pytest.raises(DeadlockError) as caught:
        check(ActorGraph(actors, queues, 1, (("a0", "a1"), ("b0", "b1"))))
    assert [(wait.actor, wait.on) for wait in caught.value.cycle] == [
        ("a0", "a1"),
        ("a1", "b1"),
        ("b1", "b0"),
        ("b0", "a0"),
    ]
    assert "'a0' at micro-batch 0 waits for 'a1', which has to begin at the same time" in str(caught.value)
    assert "'a1' at micro-batch 0 waits for its turn, as queue 'q1' is at 'b1'" in str(caught.value)


def test_ends_of_transfers_in_different_orders() -> None:
    """Two transfers that share a queue on either side, and come in different orders."""
    actors = (
        ActorSpec("s0", "out"),
        ActorSpec("s1", "out"),
        ActorSpec("r0", "in", receives="s0"),
        ActorSpec("r1", "in", receives="s1"),
    )
    out = Queue("out", (Firing("s0", 0), Firing("s1", 0)), ordered=True)
    check(ActorGraph(actors, (out, Queue("in", (Firing("r0", 0), Firing("r1", 0)), ordered=True)), 1))
    with pytest.raises(DeadlockError, match="'s0' at micro-batch 0 waits for 'r0', which has to begin"):
        check(ActorGraph(actors, (out, Queue("in", (Firing("r1", 0), Firing("r0", 0)), ordered=True)), 1))


def test_the_protocol_step_by_step() -> None:
    """One producer with two registers, two consumers: the counters of the design, one firing after the other."""
    graph = ActorGraph((ActorSpec("a", "q", registers=2), B, ActorSpec("c", "q", (Read("a", 1),))), (Q,), 3)
    actors, bus = make_actors(graph), DirectBus()
    a, b, c = actors["a"], actors["b"], actors["c"]
    assert (a.is_ready(), b.is_ready(), c.is_ready()) == (True, False, False)
    first = a.begin()
    assert (len(a.free), first.ref) == (1, 0)
    a.finish(first, ["x", "y"], bus)
    assert (first.ref, len(b.ports[0].filled), len(c.ports[0].filled)) == (2, 1, 1)
    second = a.begin()
    a.finish(second, ["z", "w"], bus)
    assert not a.is_ready()  # both registers are filled
    assert b.read({}) == ["x"]
    b.finish(b.begin(), [], bus)
    assert (first.ref, a.is_ready()) == (1, False)
    assert c.read({}) == ["y"]
    c.finish(c.begin(), [], bus)
    assert (first.ref, a.is_ready(), len(a.free)) == (0, True, 1)
    with pytest.raises(RegisterError, match=r"register 0 of 'a', .* was read for firing 0 after it was freed"):
        first.read(0)
    assert second.read(1) == ["z", "w"]
    c.finish(c.begin(), [], bus)
    with pytest.raises(RegisterError, match="'c' began to fire before it was ready"):
        c.begin()


def test_what_is_read_by_all_micro_batches_stays_until_the_last() -> None:
    graph = ActorGraph((ActorSpec("a", "q", phase=BEFORE), B, ActorSpec("c", "q", (Read("a"),), AFTER)), (Q,), 3)
    actors, bus = make_actors(graph), DirectBus()
    a, b, c = actors.values()
    register = a.begin()
    a.finish(register, ["w"], bus)
    c.finish(c.begin(), [], bus)
    for left in (1, 1, 0):
        assert b.read({}) == ["w"]
        b.finish(b.begin(), [], bus)
        assert register.ref == left
    assert all(actor.is_done for actor in actors.values())


def test_registers_do_not_forgive() -> None:
    register = Register("a", 0)
    with pytest.raises(RegisterError, match="after it was freed"):
        register.read(0)
    with pytest.raises(RegisterError, match="released more often"):
        register.release()
    register.fill(0, ["x"], 1)
    with pytest.raises(RegisterError, match="filled again, for firing 1, while 1 still read it"):
        register.fill(1, ["y"], 1)
    with pytest.raises(RegisterError, match="freed while 1 still read it"):
        register.free()
    with pytest.raises(RegisterError, match="read for firing 1"):
        register.read(1)
    assert register.release()
    register.free()
    register.fill(1, ["y"], 1)
    with pytest.raises(RegisterError, match="read for firing 0 after"):
        register.read(0)  # it holds something again, and not what was meant
