"""The beam of a search: its states, and what they have in common.

States hold most tensors in the same layouts. What all hold alike is kept once, in `Beam.common`, and each state has
only what is its own; every tensor is in one or the other. So an op is worked out once for all states that hold alike
what it looks at, states are told apart by what is their own, and nothing is copied but that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from whaleish.planner.view import Candidate
from whaleish.sbp import Sbp

BEAM = 24

Layouts = tuple[Sbp, ...]
Held = Mapping[int, Layouts]
"""Tensor -> layouts in which it exists, the one it was made in first."""


class Way(NamedTuple):
    """One way to carry out an op.

    Attributes:
      moving, computing: seconds.
      changes: what is held otherwise after it.
    """

    moving: float
    computing: float
    candidate: Candidate
    changes: dict[int, Layouts]


@dataclass(slots=True)
class State:
    """One way to have carried out the ops so far.

    Attributes:
      own: what it holds and others do not, or not so.
      trail: the candidates taken, a run of them at a time and the newest first, as a linked list.
    """

    cost: float = 0.0
    own: dict[int, Layouts] = field(default_factory=dict)
    trail: tuple[Sequence[Candidate], Any] | None = None


class Look(Mapping[int, Layouts]):
    """What a state holds, for an op to look at.

    Attributes:
      seen: what was looked at and is the state's own.
    """

    def __init__(self, common: Held, own: Held) -> None:
        self._common, self._own = common, own
        self.seen: dict[int, Layouts] = {}

    def __getitem__(self, tensor: int) -> Layouts:
        found = self._own.get(tensor)
        if found is None:
            return self._common[tensor]
        self.seen[tensor] = found
        return found

    def get(self, tensor: int, default: Any = None) -> Any:
        found = self._own.get(tensor)
        if found is None:
            return self._common.get(tensor, default)
        self.seen[tensor] = found
        return found

    def __iter__(self) -> Iterator[int]:
        return iter({**self._common, **self._own})

    def __len__(self) -> int:
        return len(self._common) + len(self._own)


class Beam:
    """The cheapest states, the cheapest first.

    Args:
      held: what is held before the first op.
      forgotten: tensor -> the op after which states that differ in it alone count as one.
    """

    def __init__(self, held: Held, forgotten: Mapping[int, int]) -> None:
        self.common = dict(held)
        self._states = [State()]
        self._forgotten = forgotten
        self._alike: list[Way] = []  # what all states have done alike since they last did not

    def advance(self, index: int, ways_of: Callable[[Held], Sequence[Way]], gone: Sequence[int]) -> bool:
        """Carries out an op in every state; returns whether there is a way at all.

        Args:
          ways_of: what is held -> the ways to carry out op `index`, which depend on nothing else.
          gone: tensors that no later op reads.
        """
        found: list[tuple[dict[int, Layouts], Sequence[Way]]] = []
        pairs = []
        for state in self._states:
            own = state.own
            ways = next((w for seen, w in found if all(own[t] == held for t, held in seen.items())), None)
            if ways is None:
                look = Look(self.common, own)
                ways = ways_of(look if own else self.common)
                if not look.seen and len(ways) == 1:  # so it is in all states
                    self._do_alike(ways[0], gone)
                    return True
                found.append((look.seen, ways))
            pairs += [(state, way) for way in ways]
        if pairs:
            self._part(index, pairs, gone)
        return bool(pairs)

    def best(self) -> tuple[list[Candidate], Held]:
        """The candidates that the cheapest state has taken, and what it holds."""
        self._write_down()
        best = self._states[0]
        runs, trail = [], best.trail
        while trail is not None:
            run, trail = trail
            runs.append(run)
        return [candidate for run in reversed(runs) for candidate in run], {**self.common, **best.own}

    def _do_alike(self, way: Way, gone: Sequence[int]) -> None:
        self._alike.append(way)
        self.common.update(way.changes)
        for tensor in gone:
            self.common.pop(tensor, None)

    def _write_down(self) -> None:
        """Adds to each state what all have done alike."""
        run = tuple(way.candidate for way in self._alike)
        for state in self._states:
            for way in self._alike:
                state.cost = state.cost + way.moving + way.computing
            state.trail = (run, state.trail)
        self._alike = []

    def _part(self, index: int, pairs: Sequence[tuple[State, Way]], gone: Sequence[int]) -> None:
        """Carries out an op in different ways in different states. Those that later ops cannot tell apart merge."""
        self._write_down()
        touched = {tensor: self.common.get(tensor, ()) for _, way in pairs for tensor in way.changes}
        merged: dict[object, State] = {}
        apart: list[int] = []
        for state, way in pairs:
            own = {**touched, **state.own, **way.changes}
            for tensor in gone:
                own.pop(tensor, None)
            if not merged:
                apart = [tensor for tensor in own if self._forgotten.get(tensor, index + 1) > index]
            key = tuple(map(own.__getitem__, apart))
            cost = state.cost + way.moving + way.computing
            if key not in merged or cost < merged[key].cost:
                merged[key] = State(cost, own, ((way.candidate,), state.trail))
        for tensor in (*touched, *gone):
            self.common.pop(tensor, None)
        self._states = sorted(merged.values(), key=lambda state: state.cost)[:BEAM]
        self._agree()

    def _agree(self) -> None:
        """Puts together what all states hold alike."""
        first, *others = (state.own for state in self._states)
        alike = {t: held for t, held in first.items() if all(own[t] == held for own in others)}
        self.common.update(alike)
        for state in self._states:
            for tensor in alike:
                del state.own[tensor]
