"""Random actor graphs, what they compute when run one after the other, and a witness of how they run for real."""

import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from whaleish.runtime import AFTER, BEFORE, EACH, ActorGraph, ActorSpec, Chunk, Executor, Feed, Queue, Read, executor
from whaleish.runtime.check import DeadlockError

LIMIT = 20.0
"""Seconds after which a run that has not ended counts as hanging."""


def examples(count: int) -> settings:
    """So many examples, on machines however busy."""
    return settings(max_examples=count, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def within(limit: float, function: Callable[[], Any]) -> Any:
    """What a function returns, or raises; fails if it has not ended within so many seconds."""
    outcome: list[Any] = []

    def call() -> None:
        try:
            outcome.append((True, function()))
        except BaseException as error:
            outcome.append((False, error))

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(limit)
    assert outcome, f"it has not ended within {limit:g} s"
    returned, value = outcome[0]
    if returned:
        return value
    raise value


@st.composite
def graphs(draw: st.DrawFn, stuck: bool = False) -> ActorGraph:
    """Actors of all phases on one to three compute queues, transfers between queues, and any register counts.

    Nothing here depends on an order, so all of them can run, unless somebody reads every value of an actor that cannot
    hold so many. If `stuck`, somebody does.
    """
    micro_batches, devices = draw(st.integers(1 + stuck, 5)), draw(st.integers(1, 3))
    actors: list[ActorSpec] = []
    queues = [Queue(f"device {k}") for k in range(devices)]
    outputs: dict[str, tuple[str, str, int]] = {}  # readable actor -> phase, queue, number of outputs
    for number in range(draw(st.integers(1, 7))):
        phase = draw(st.sampled_from([EACH, EACH, EACH, BEFORE, AFTER]))
        queue = f"device {draw(st.integers(0, devices - 1))}"
        name, inputs = f"a{number}", []
        order = [BEFORE, EACH, AFTER]
        sources = [n for n, (p, _, _) in outputs.items() if order.index(p) <= order.index(phase)]
        for source in draw(st.lists(st.sampled_from(sources), max_size=3)) if sources else []:
            theirs, at, count = outputs[source]
            output = draw(st.integers(0, count - 1))
            if at != queue and draw(st.booleans()):
                send, receive = f"send {len(actors)}", f"receive {len(actors)}"
                queues += [Queue(send), Queue(receive)]
                actors.append(ActorSpec(send, send, (Read(source, output),), theirs))
                actors.append(ActorSpec(receive, receive, (), theirs, draw(st.integers(1, 3)), receives=send))
                outputs[receive] = theirs, receive, 1
                source, output = receive, 0
            every = (theirs, phase) == (EACH, AFTER) and draw(st.booleans())
            inputs.append(Read(source, output, every))
        if draw(st.booleans()):
            inputs.append(Feed(f"feed {phase}"))
        actors.append(ActorSpec(name, queue, tuple(inputs), phase, draw(st.integers(1, 3)), stage=number))
        outputs[name] = phase, queue, 2
    if stuck:
        few = draw(st.integers(1, min(3, micro_batches - 1)))
        actors.append(ActorSpec("few", "device 0", (), EACH, few))
        actors.append(ActorSpec("every", "device 0", (Read("few", 0, every=True),), AFTER))
    readable = [spec for spec in actors if not spec.name.startswith("send")]
    results = tuple(Read(spec.name) for spec in readable)
    return ActorGraph(tuple(actors), tuple(queues), micro_batches, results=results)


def feeds_of(graph: ActorGraph) -> dict[str, list[Any]]:
    found = {read.name: graph.firings(s.name) for s in graph.actors for read in s.inputs if isinstance(read, Feed)}
    return {name: [f"{name} {k}" for k in range(count)] for name, count in found.items()}


def is_transfer(graph: ActorGraph, name: str) -> bool:
    return graph.kind(name) != "chunk"


def value(name: str, firing: int, inputs: Sequence[Any]) -> list[Any]:
    """What the chunks of a random graph make: texts that tell all they are made from, in short."""
    return [f"{name}.{output}@{firing}({hash(str(inputs)) % 10**9})" for output in range(2)]


def plainly(graph: ActorGraph, feeds: Mapping[str, Sequence[Any]]) -> dict[Read, list[Any]]:
    """The results, by running the actors one after the other, in the order in which they are written down."""
    made: dict[str, list[list[Any]]] = {spec.name: [] for spec in graph.actors}

    def fire(spec: ActorSpec, firing: int) -> None:
        if spec.receives is not None:
            made[spec.name].append(made[spec.receives][firing])
            return
        inputs: list[Any] = []
        for read in spec.inputs:
            if isinstance(read, Feed):
                inputs.append(feeds[read.name][firing])
            elif read.every:
                inputs.append([outputs[read.output] for outputs in made[read.actor]])
            else:
                same = graph.by_name[read.actor].phase == spec.phase
                inputs.append(made[read.actor][firing if same else -1][read.output])
        made[spec.name].append(inputs if spec.name in graph.receiver_of else value(spec.name, firing, inputs))

    for phase, count in ((BEFORE, 1), (EACH, graph.micro_batches), (AFTER, 1)):
        for firing in range(count):
            for spec in graph.actors:
                if spec.phase == phase:
                    fire(spec, firing)
    return {read: [outputs[read.output] for outputs in made[read.actor]] for read in graph.results}


class Witness:
    """Chunks for a graph that write down when each firing begins and ends, and take their time.

    Attributes:
      log: (actor, firing, whether it begins), in the order in which it happened.
    """

    def __init__(self, graph: ActorGraph, seed: int, longest: float = 0.001) -> None:
        self.graph, self.log = graph, []
        # Those of a group meet in every firing, as in a collective.
        self._barriers = {name: threading.Barrier(len(group)) for group in graph.groups for name in group[:1]}
        self._barriers |= {name: self._barriers[group[0]] for group in graph.groups for name in group}
        self._lock, self._random, self._longest = threading.Lock(), random.Random(seed), longest

    def abort(self) -> None:
        for barrier in self._barriers.values():
            barrier.abort()

    def chunks(self) -> dict[str, Chunk]:
        return {name: Chunk(self._work(name)) for name in self.graph.by_name if not is_transfer(self.graph, name)}

    def _work(self, name: str) -> Callable[[list[Any]], list[Any]]:
        def work(inputs: list[Any], firing: int) -> list[Any]:
            with self._lock:
                self.log.append((name, firing, True))
                delay = self._random.choice([0, 0, self._random.random() * self._longest])
            if delay:
                time.sleep(delay)
            if name in self._barriers:
                self._barriers[name].wait()
            outputs = value(name, firing, inputs)
            with self._lock:
                self.log.append((name, firing, False))
            return outputs

        return work

    def most_in_flight(self, name: str) -> int:
        """The most firings whose outputs were being made, or had been and were still to be read, at one time.

        Only of actors that no transfer reads, as the ends of transfers leave no mark in the log.
        """
        readers = {spec.name for spec in self.graph.actors for read in spec.inputs if read[0] == name}
        needed = {firing: set(self._readings(name, firing)) for firing in range(self.graph.firings(name))}
        assert not any(is_transfer(self.graph, reader) for reader in readers)
        held: set[int] = set()
        most = 0
        for actor, firing, begins in self.log:
            if actor == name and begins:
                held.add(firing)
                most = max(most, len(held))
            elif actor == name and not needed[firing]:
                held.discard(firing)
            elif not begins:
                for mine, readings in needed.items():
                    if (actor, firing) in readings:
                        readings.discard((actor, firing))
                        if not readings:
                            held.discard(mine)
        return most

    def _readings(self, name: str, firing: int) -> list[tuple[str, int]]:
        """Which firings read what a firing made."""
        found = []
        for spec in self.graph.actors:
            for read in spec.inputs:
                if isinstance(read, Read) and read.actor == name:
                    phases = self.graph.by_name[name].phase, spec.phase
                    if phases == (BEFORE, EACH):
                        found += [(spec.name, k) for k in range(self.graph.micro_batches)]
                    elif phases == (EACH, AFTER):
                        last = firing == self.graph.micro_batches - 1
                        found += [(spec.name, 0)] if read.every or last else []
                    else:
                        found.append((spec.name, firing))
        return found


def hangs(graph: ActorGraph) -> bool:
    """Whether a run without the check stands still."""
    witness = Witness(graph, 0, 0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(executor, "check", lambda graph: None)
        run = executor._Run(Executor(graph, witness.chunks(), patience=0.1), feeds_of(graph), None)
    ended = threading.Event()

    def go() -> None:
        try:
            run.go()
            ended.set()
        except KeyboardInterrupt:
            pass

    thread = threading.Thread(target=go)
    thread.start()
    stood_still = not ended.wait(0.1)
    run._fail(KeyboardInterrupt())
    witness.abort()
    thread.join(LIMIT)
    assert not thread.is_alive()
    return stood_still


def executor_of(graph: ActorGraph, chunks: Mapping[str, Chunk], **options: Any) -> Executor | DeadlockError:
    """An executor, or the error with which the check refuses the graph."""
    try:
        return Executor(graph, chunks, **options)
    except DeadlockError as error:
        return error
