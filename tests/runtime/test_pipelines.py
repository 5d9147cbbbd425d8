"""Pipelines as actor graphs: what the check accepts runs, in the schedule's order where devices share chunks."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.runtime.graphs import LIMIT, Witness, examples, executor_of, feeds_of, hangs, plainly, within
from tests.runtime.pipelines import forwards_as_scheduled, pipeline, scheduled, with_registers
from whaleish.runtime import ActorGraph, DeadlockError, Executor, check, with_enough_registers
from whaleish.schedule import Schedule, gpipe, make_schedule, one_f_one_b

NAMES = ["gpipe", "1f1b", "zb-h1", "interleaved(2)"]


@pytest.mark.parametrize("name", NAMES)
def test_every_schedule_can_be_kept_with_the_registers_that_it_says(name: str) -> None:
    """And not with one less. Backwards need more than one only where their readers are not next in turn."""
    for stages, micro_batches, transfers in itertools.product((2, 4), (1, 3, 8), (False, True)):
        schedule = make_schedule(name, stages, micro_batches)
        live = pipeline(schedule, forwards_as_scheduled(schedule), width=2, ordered=True, transfers=transfers)
        enough = with_enough_registers(live)
        grown = {a.name for a, b in zip(live.actors, enough.actors, strict=True) if a != b}
        assert all(actor.startswith("backward") for actor in grown)
        assert not grown or name in ("zb-h1", "interleaved(2)")
        for actor in enough.actors:
            if actor.registers > 1:
                with pytest.raises(DeadlockError, match=f"'{actor.name}' at .* waits for .* register"):
                    check(with_registers(enough, {actor.name: actor.registers - 1}))


def test_no_registers_help_where_orders_contradict_each_other() -> None:
    graph = pipeline(gpipe(2, 2), ordered=True)
    first, second = graph.queues
    swapped = (*second.order[:-3], second.order[-2], second.order[-3], second.order[-1])
    assert {firing.actor for firing in swapped[-3:-1]} == {"backward 1.0"}
    with pytest.raises(ValueError, match="firings go upwards"):
        replace(graph, queues=(first, replace(second, order=swapped)))
    backwards_first = (*second.order[2:4], *second.order[:2], second.order[-1])
    with pytest.raises(DeadlockError, match=r"change the order of queue 'device 1\.0'$"):
        with_enough_registers(replace(graph, queues=(first, replace(second, order=backwards_first))))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("width", [1, 2])
def test_results_equal_a_plain_run(name: str, width: int) -> None:
    schedule = make_schedule(name, 4, 7)
    graph = pipeline(schedule, forwards_as_scheduled(schedule), width, transfers=True, skips=((0, 2), (1, 3)))
    graph = with_enough_registers(graph)
    witness, feeds = Witness(graph, 0), feeds_of(graph)
    assert within(LIMIT, lambda: Executor(graph, witness.chunks()).run(feeds)) == plainly(graph, feeds)
    if width > 1:  # every device has kept to the schedule
        for queue in graph.queues:
            if queue.ordered:
                here = {spec.name for spec in graph.actors if spec.queue == queue.name}
                assert [entry[:2] for entry in witness.log if entry[2] and entry[0] in here] == list(queue.order)


@examples(120)
@given(scheduled(), st.integers(0, 99))
def test_what_is_accepted_never_hangs(drawn: tuple[Schedule, ActorGraph], seed: int) -> None:
    _, graph = drawn
    witness, feeds = Witness(graph, seed), feeds_of(graph)
    runner = executor_of(graph, witness.chunks())
    if isinstance(runner, DeadlockError):
        _is_a_circle(graph, runner)
    else:
        assert within(LIMIT, lambda: runner.run(feeds)) == plainly(graph, feeds)


@examples(15)
@given(scheduled().filter(lambda drawn: not _accepted(drawn[1])))
def test_what_is_refused_would_have_hung(drawn: tuple[Schedule, ActorGraph]) -> None:
    _, graph = drawn
    assert hangs(graph)


def _accepted(graph: ActorGraph) -> bool:
    try:
        check(graph)
    except DeadlockError:
        return False
    return True


def _is_a_circle(graph: ActorGraph, error: DeadlockError) -> None:
    assert len({wait.actor for wait in error.cycle}) == len(error.cycle) > 0
    for wait, following in zip(error.cycle, (*error.cycle[1:], error.cycle[0]), strict=True):
        assert wait.on == following.actor
        assert wait.number < graph.firings(wait.actor)
        assert f"{wait.actor!r}" in str(error)


class TestCaseF12:
    """3 stages, 8 micro-batches, one register each, branches in the backward, 50 seeds of random delays."""

    SKIPS = ((0, 2),)  # the gradient of stage 0 comes from stages 1 and 2

    def test_stages_of_one_device(self) -> None:
        graph = pipeline(one_f_one_b(3, 8), transfers=True, skips=self.SKIPS)
        self._all_finish(graph)

    def test_stages_of_two_devices_that_share_their_chunks(self) -> None:
        """Single members of a group are delayed, for every member draws its own delays."""
        sequential = Schedule.parse("\n".join([" ".join(f"F{m} B{m}" for m in range(8))] * 3))
        graph = pipeline(sequential, width=2, transfers=True, skips=self.SKIPS)
        self._all_finish(graph)

    def test_with_the_registers_of_1f1b(self) -> None:
        schedule = one_f_one_b(3, 8)
        graph = pipeline(schedule, forwards_as_scheduled(schedule), width=2, transfers=True, skips=self.SKIPS)
        self._all_finish(graph)

    def _all_finish(self, graph: ActorGraph) -> None:
        feeds = feeds_of(graph)
        expected = plainly(graph, feeds)
        for seed in range(50):
            runner = Executor(graph, Witness(graph, seed, 0.0005).chunks())
            assert within(LIMIT, lambda runner=runner: runner.run(feeds)) == expected

    def test_a_plan_that_would_hang_is_refused(self) -> None:
        """1F1B has the first stage go forward three times before it goes back; with one register it cannot."""
        graph = pipeline(one_f_one_b(3, 8), width=2, transfers=True, skips=self.SKIPS)
        with pytest.raises(DeadlockError) as caught:
            Executor(graph, Witness(graph, 0).chunks())
        _is_a_circle(graph, caught.value)
        assert str(caught.value) == (
            "these actors would wait for each other for ever:\n"
            "  'forward 0.0' at micro-batch 1 waits for its register, as 'backward 0.0' has not read "
            "'forward 0.0' at micro-batch 0\n"
            "  'backward 0.0' at micro-batch 0 waits for its turn, as queue 'device 0.0' is at "
            "'forward 0.0' at micro-batch 1\n"
            "To break the circle, give 'forward 0.0' more registers than 1 or change the order of queue 'device 0.0'"
        )
        assert hangs(graph)
