"""Specs: what an actor reads, how often it fires, and the queue on which it does, as plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

BEFORE, EACH, AFTER = "before", "each", "after"
"""Phases: once before the micro-batches, once for each, once after."""


class Read(NamedTuple):
    """An input that is an output of another actor.

    Attributes:
      actor, output: which output of which actor.
      every: only for what is made for each micro-batch and read once after them: all values, as a list. Otherwise that
        reads the last one, which of a running sum is the whole sum.
    """

    actor: str
    output: int = 0
    every: bool = False


class Feed(NamedTuple):
    """An input that is given to the run: one value for each firing of the actor."""

    name: str


class Firing(NamedTuple):
    """The n-th time that an actor fires; for actors of phase "each", its micro-batch."""

    actor: str
    number: int


class Edge(NamedTuple):
    """What one actor makes and another reads, at some rate.

        before -> each      serves = M: the register is read by all firings before it is free again
        each   -> after     last: only the last register is passed on; or needs = M: the one firing reads all registers
        all others          one register for each firing

    Attributes:
      last: only what the producer's last firing made is passed on.
      needs: how many filled registers a firing reads.
      serves: how many firings read the same ones.
    """

    producer: str
    consumer: str
    last: bool = False
    needs: int = 1
    serves: int = 1


@dataclass(frozen=True)
class ActorSpec:
    """An actor: one chunk on one device, or one end of a transfer.

    Attributes:
      name: unique in the graph.
      queue: the queue on which it takes turns with others.
      inputs: what it reads, in the order in which its chunk takes it.
      phase: BEFORE, EACH or AFTER.
      registers: how many firings' outputs can be held at once.
      receives: the name of the actor whose inputs become its outputs: the two are the ends of a transfer.
      stage, source: of the chunk, for errors: a number, and a line of the user's ("train.py:24").
    """

    name: str
    queue: str
    inputs: tuple[Read | Feed, ...] = ()
    phase: str = EACH
    registers: int = 1
    receives: str | None = None
    stage: int | None = None
    source: str = ""


@dataclass(frozen=True)
class Queue:
    """Actors that fire one at a time: those of one device that compute, or transfers.

    Attributes:
      order: all firings of its actors, the preferred first. Where it is left out, lower micro-batches go first.
      ordered: whether actors fire in exactly this order; if not, one that can fire does not wait for one that cannot.
      process: in which it runs.
    """

    name: str
    order: tuple[Firing, ...] = ()
    ordered: bool = False
    process: int = 0
