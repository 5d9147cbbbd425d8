"""The bus: how actors tell each other that a register is filled, or has been read."""

from __future__ import annotations

from collections.abc import Iterable
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, NamedTuple, Protocol

from whaleish.runtime.register import Register

if TYPE_CHECKING:
    from whaleish.runtime.actor import Actor


class Produced(NamedTuple):
    """To a consumer: a register was filled by a firing of the producer, for the port of that number."""

    actor: Actor
    port: int
    register: Register
    firing: int

    def deliver(self) -> None:
        self.actor.take_in(self.port, self.register, self.firing)


class Consumed(NamedTuple):
    """To a producer: one of those who read a register is done."""

    actor: Actor
    register: Register

    def deliver(self) -> None:
        self.actor.take_back(self.register)


Message = Produced | Consumed


class Bus(Protocol):
    """What actors post to."""

    def post(self, message: Message, sender: Actor) -> None:
        """Delivers a message, now or soon, on the queue of the actor that it is to."""


class DirectBus:
    """Delivers at once: for a single thread."""

    def post(self, message: Message, sender: Actor) -> None:
        message.deliver()


class Stopped(Exception):
    """The run has been stopped: nothing more is to fire."""


class MailboxBus:
    """Delivers at once to actors on the sender's own queue, and through a mailbox to others.

    Each queue has one thread, which alone touches the actors on it; so only mailboxes are shared.
    """

    def __init__(self, queues: Iterable[str]) -> None:
        self._mailboxes: dict[str, SimpleQueue[Message | None]] = {name: SimpleQueue() for name in queues}
        self._stopped = False

    def post(self, message: Message, sender: Actor) -> None:
        if message.actor.queue == sender.queue:
            message.deliver()
        else:
            self._mailboxes[message.actor.queue].put(message)

    def deliver(self, queue: str, wait: bool) -> None:
        """Delivers what has come for a queue; if asked to, waits until something has.

        Raises:
          Stopped: `stop` was called.
        """
        mailbox = self._mailboxes[queue]
        while not self._stopped:
            try:
                message = mailbox.get(wait)
            except Empty:
                return
            if message is not None:
                message.deliver()
            wait = False
        raise Stopped

    def stop(self) -> None:
        """Wakes all who wait."""
        self._stopped = True
        for mailbox in self._mailboxes.values():
            mailbox.put(None)
