"""The actor runtime: chunks that fire when their inputs are there and a register is free."""

from whaleish.runtime.check import DeadlockError, Wait, check, with_enough_registers
from whaleish.runtime.chunk import Chunk
from whaleish.runtime.executor import Executor, StageError
from whaleish.runtime.graph import ActorGraph
from whaleish.runtime.order import firing_order
from whaleish.runtime.predict import predict, with_room
from whaleish.runtime.spec import AFTER, BEFORE, EACH, ActorSpec, Feed, Firing, Queue, Read
from whaleish.runtime.trace import Event, Trace
from whaleish.runtime.transport import Aborted, InProcess, Transfer, Transport

__all__ = [
    "AFTER",
    "BEFORE",
    "EACH",
    "Aborted",
    "ActorGraph",
    "ActorSpec",
    "Chunk",
    "DeadlockError",
    "Event",
    "Executor",
    "Feed",
    "Firing",
    "InProcess",
    "Queue",
    "Read",
    "StageError",
    "Trace",
    "Transfer",
    "Transport",
    "Wait",
    "check",
    "firing_order",
    "predict",
    "with_enough_registers",
    "with_room",
]
