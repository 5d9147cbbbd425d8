"""Rotas: which actor of a queue fires next."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from whaleish.runtime.actor import Actor
from whaleish.runtime.spec import Firing, Queue


class Rota:
    """The actors of a queue, and the order that they prefer or must keep."""

    def __init__(self, queue: Queue, actors: Iterable[Actor]) -> None:
        self.actors = [actor for actor in actors if actor.queue == queue.name]
        order: Sequence[Firing] = queue.order
        if not order:
            firings = [Firing(a.name, number) for a in self.actors for number in range(a.firings)]
            order = sorted(firings, key=lambda firing: firing.number)
        by_name = {actor.name: actor for actor in self.actors}
        self._must = [by_name[firing.actor] for firing in order] if queue.ordered else None
        self._ranks: dict[str, list[int]] = {actor.name: [] for actor in self.actors}
        for rank, firing in enumerate(order):
            self._ranks[firing.actor].append(rank)

    @property
    def must_be(self) -> Actor | None:
        """The actor whose turn it is, where the order is kept; None where it is not, or all have fired."""
        fired = sum(actor.fired for actor in self.actors)
        return self._must[fired] if self._must is not None and fired < len(self._must) else None

    def choose(self) -> Actor | None:
        """The actor to fire now; None if there is none."""
        if self._must is not None:
            actor = self.must_be
            return actor if actor is not None and actor.is_ready() else None
        ready = [actor for actor in self.actors if actor.is_ready()]
        return min(ready, key=lambda actor: self._ranks[actor.name][actor.fired], default=None)

    @property
    def is_done(self) -> bool:
        return all(actor.is_done for actor in self.actors)
