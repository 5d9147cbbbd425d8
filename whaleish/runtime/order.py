"""From the actions of a schedule to the firings of actors."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from whaleish.runtime.spec import Firing
from whaleish.schedule.action import Action


def firing_order(
    actions: Iterable[Action],
    actors: Callable[[Action], Iterable[str]],
    before: Iterable[str] = (),
    after: Iterable[str] = (),
) -> tuple[Firing, ...]:
    """The order of a queue that goes through a device's actions.

    Args:
      actors: which actors carry out an action, one after the other; none if they are on other queues.
      before, after: actors that fire once.
    """
    each = [Firing(name, action.micro_batch) for action in actions for name in actors(action)]
    return (*(Firing(name, 0) for name in before), *each, *(Firing(name, 0) for name in after))
