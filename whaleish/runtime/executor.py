"""The executor: runs the actors of a process, a thread for each queue."""

from __future__ import annotations

import os
import sysconfig
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

from whaleish.runtime.actor import Actor, make_actors
from whaleish.runtime.bus import MailboxBus, Stopped
from whaleish.runtime.check import check
from whaleish.runtime.chunk import Chunk
from whaleish.runtime.graph import ActorGraph
from whaleish.runtime.rota import Rota
from whaleish.runtime.spec import EACH, ActorSpec, Feed, Read
from whaleish.runtime.trace import Event, Trace, nbytes
from whaleish.runtime.transport import Aborted, InProcess, Transfer, Transport


class StageError(RuntimeError):
    """A chunk or a transfer failed; its own error is the cause of this one.

    Attributes:
      chunk, stage, source: of the actor; `source` is a line of the user's, or "".
      micro_batch: None for what runs once.
    """

    def __init__(
        self, spec: ActorSpec, what: str, micro_batch: int | None, error: BaseException, source: str = ""
    ) -> None:
        self.chunk, self.stage, self.micro_batch = spec.name, spec.stage, micro_batch
        self.source = source or _users_line(error) or spec.source
        of_stage = "" if spec.stage is None else f" of stage {spec.stage}"
        when = f"{spec.phase} the micro-batches" if micro_batch is None else f"at micro-batch {micro_batch}"
        where = f", {self.source}" if self.source else ""
        super().__init__(f"{what} {spec.name!r}{of_stage} failed {when}{where}: {type(error).__name__}: {error}")


class Executor:
    """Runs one step of an actor graph, as often as asked.

    Args:
      graph: checked here; see `check`.
      chunks: for each actor of this process that is no end of a transfer what it does.
      process: whose actors run here.
      transport: between processes. None: all ends of transfers are in this process.
      patience: seconds for which a failed run waits for firings in progress, which nothing can interrupt.
    """

    def __init__(
        self,
        graph: ActorGraph,
        chunks: Mapping[str, Chunk],
        *,
        process: int = 0,
        transport: Transport | None = None,
        patience: float = 10.0,
    ) -> None:
        check(graph)
        self.graph, self.chunks, self.process, self.patience = graph, dict(chunks), process, patience
        self._transport = transport
        here = [spec for spec in graph.actors if graph.queue_of[spec.name].process == process]
        wanted = {spec.name for spec in here if graph.kind(spec.name) == "chunk"}
        if wanted != set(chunks):
            missing, unknown = sorted(wanted - set(chunks)), sorted(set(chunks) - wanted)
            raise ValueError(
                f"process {process} has the chunks {', '.join(sorted(wanted))}; "
                + (f"{missing[0]!r} has no work" if missing else f"{unknown[0]!r} is none of them")
            )
        self._feeds = {read.name: graph.firings(s.name) for s in here for read in s.inputs if isinstance(read, Feed)}

    def run(
        self, feeds: Mapping[str, Sequence[Any]] | None = None, trace: Trace | None = None
    ) -> dict[Read, list[Any]]:
        """Runs the step.

        Args:
          feeds: for each feed as many values as its actor fires.
          trace: collects events; None costs nothing.

        Returns:
          For each result of the graph that is made in this process its values, one for each firing.

        Raises:
          StageError: a chunk failed. All others have been stopped: they end what they are doing and begin nothing.
        """
        feeds = feeds or {}
        for name, count in self._feeds.items():
            found = len(feeds[name]) if name in feeds else 0
            if found != count:
                raise ValueError(f"the feed {name!r} has {found} values, and needs {count}")
        return _Run(self, feeds, trace).go()


class _Run:
    """One run: its actors, its threads and what became of it."""

    def __init__(self, executor: Executor, feeds: Mapping[str, Sequence[Any]], trace: Trace | None) -> None:
        self.executor, self.feeds, self.trace = executor, feeds, trace
        self.graph, self.chunks = executor.graph, executor.chunks
        self.transport = executor._transport or InProcess()
        self.actors = make_actors(self.graph, executor.process)
        queues = [queue for queue in self.graph.queues if queue.process == executor.process]
        self.bus = MailboxBus(queue.name for queue in queues)
        self.threads = [
            threading.Thread(
                target=self._serve, args=(queue.name, Rota(queue, self.actors.values())), name=queue.name, daemon=True
            )
            for queue in queues
        ]
        self.states = {name: list(chunk.state()) for name, chunk in self.chunks.items() if chunk.state is not None}
        self.results: dict[Read, list[Any]] = {read: [] for read in self.graph.results if read.actor in self.actors}
        self.outputs_needed = dict.fromkeys(self.actors, 0)
        reads = [read for spec in self.graph.actors for read in spec.inputs if isinstance(read, Read)]
        for read in (*reads, *self.results):
            if read.actor in self.actors:
                self.outputs_needed[read.actor] = max(self.outputs_needed[read.actor], read.output + 1)
        self.results_of: dict[str, list[Read]] = {name: [] for name in self.actors}
        for read in self.results:
            self.results_of[read.actor].append(read)
        self.lock, self.ended = threading.Lock(), threading.Event()
        self.running = len(self.threads)
        self.error: BaseException | None = None

    def go(self) -> dict[Read, list[Any]]:
        try:
            for thread in self.threads:
                thread.start()
            if self.threads:
                self.ended.wait()
        except BaseException as error:  # the user's Ctrl-C, most likely
            self._fail(error)
        deadline = time.monotonic() + self.executor.patience
        for thread in (thread for thread in self.threads if thread.ident is not None):
            thread.join(max(0.0, deadline - time.monotonic()))
        if self.error is not None:
            for thread in self.threads:
                if thread.is_alive():
                    self.error.add_note(
                        f"queue {thread.name!r} has not ended within {self.executor.patience:g} s: its chunk still runs"
                    )
            raise self.error
        return self.results

    def _serve(self, queue: str, rota: Rota) -> None:
        """What the thread of a queue does."""
        try:
            self.bus.deliver(queue, wait=False)
            while not rota.is_done:
                actor = rota.choose()
                if actor is not None:
                    self._fire(actor)
                self.bus.deliver(queue, wait=actor is None and not rota.is_done)
        except Stopped:
            pass
        except BaseException as error:
            self._fail(error)
        finally:
            with self.lock:
                self.running -= 1
                if not self.running:
                    self.ended.set()

    def _fire(self, actor: Actor) -> None:
        register, name, spec = actor.begin(), actor.name, actor.spec
        number = actor.fired if spec.phase == EACH else None
        kind = self.graph.kind(name)
        begin = time.perf_counter() if self.trace is not None else 0.0
        try:
            outputs = self._work(actor)
            if len(outputs) < self.outputs_needed[name]:
                raise ValueError(f"it returned {len(outputs)} outputs; {self.outputs_needed[name]} are read")
        except BaseException as error:
            source = self.chunks[name].source(error) if name in self.chunks else ""
            raise StageError(spec, kind, number, error, source) from error
        if self.trace is not None:
            end, process = time.perf_counter(), self.executor.process
            self.trace.add(Event(name, actor.queue, process, number, begin, end, nbytes(outputs), kind))
        for read in self.results_of[name]:
            self.results[read].append(outputs[read.output])
        actor.finish(register, outputs, self.bus)

    def _work(self, actor: Actor) -> Sequence[Any]:
        name = actor.name
        if actor.spec.receives is not None:
            transfer = Transfer(actor.spec.receives, name, actor.fired % actor.spec.registers, actor.fired)
            return self.transport.wait(self.transport.post_receive(transfer))
        inputs = actor.read(self.feeds)
        receiver = self.graph.receiver_of.get(name)
        if receiver is not None:
            slot = actor.fired % self.graph.by_name[receiver].registers
            transfer = Transfer(name, receiver, slot, actor.fired)
            return self.transport.wait(self.transport.post_send(transfer, inputs))
        state = self.states.get(name)
        if state is None:
            return self.chunks[name].work(inputs, actor.fired)
        outputs = self.chunks[name].work(inputs + state, actor.fired)
        self.states[name] = list(outputs[len(outputs) - len(state) :])
        return outputs

    def _fail(self, error: BaseException) -> None:
        with self.lock:
            if self.error is not None:
                if not isinstance(error.__cause__, Aborted):
                    self.error.add_note(f"meanwhile: {error}")
                return
            self.error = error
        self._stop()

    def _stop(self) -> None:
        self.bus.stop()
        self.transport.abort()
        self.ended.set()


_LIBRARIES = tuple(
    os.path.join(path, "")
    for path in {
        os.path.dirname(os.path.dirname(os.path.abspath(__file__))),
        *(sysconfig.get_paths()[key] for key in ("stdlib", "purelib", "platlib")),
    }
)


def _users_line(error: BaseException) -> str:
    """ "file.py:12" of the innermost frame that is neither ours nor a library's; "" where there is none."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not frame.filename.startswith(("<", *_LIBRARIES)):
            path = os.path.relpath(frame.filename)
            return f"{frame.filename if path.startswith('..') else path}:{frame.lineno}"
    return ""
