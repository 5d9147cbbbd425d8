"""The beam: what its states have in common is worked out once."""

from __future__ import annotations

from whaleish.planner.beam import Beam, Held, Way
from whaleish.planner.view import Candidate
from whaleish.sbp import B, S

FIRST, SECOND, THIRD = 10, 11, 12  # tensors


def way(tensor: int, layout, cost: float = 0.0) -> Way:
    return Way(cost, 0.0, Candidate((), (layout,), False, 0, 0.0), {tensor: (layout,)})


def choose(beam: Beam, index: int, *ways: Way, gone=()) -> bool:
    return beam.advance(index, lambda held: ways, gone)


def test_the_cheapest_state_wins_with_all_that_it_took():
    beam = Beam({}, {})
    assert choose(beam, 0, way(FIRST, S(0), 2.0), way(FIRST, S(1), 1.0))
    assert choose(beam, 1, way(SECOND, B))
    assert beam.advance(2, lambda held: [way(THIRD, held[FIRST][0], 5.0 if held[FIRST] == (S(1),) else 1.0)], ())
    taken, held = beam.best()
    assert [candidate.outputs for candidate in taken] == [(S(0),), (B,), (S(0),)]
    assert held == {FIRST: (S(0),), SECOND: (B,), THIRD: (S(0),)}


def test_an_op_is_worked_out_once_for_states_that_hold_alike_what_it_looks_at():
    beam = Beam({}, {})
    choose(beam, 0, way(FIRST, S(0)), way(FIRST, S(1)))
    choose(beam, 1, way(SECOND, S(0)), way(SECOND, S(1)), way(SECOND, B))
    looked = []

    def look(*tensors: int):
        def ways_of(held: Held) -> list[Way]:
            looked.append(tuple(held[tensor] for tensor in tensors))
            return [way(THIRD, B)]

        return ways_of

    for tensors, times in (((), 1), ((FIRST,), 2), ((SECOND,), 3), ((FIRST, SECOND), 6)):
        looked.clear()
        beam.advance(2, look(*tensors), ())
        assert len(looked) == len(set(looked)) == times


def test_states_that_later_ops_cannot_tell_apart_merge_into_the_cheapest():
    beam = Beam({}, {})
    choose(beam, 0, way(FIRST, S(0), 2.0), way(FIRST, S(1), 1.0))
    looked = []

    def end(held: Held) -> list[Way]:
        looked.append(held[FIRST])
        return [way(SECOND, B)]

    beam.advance(1, end, [FIRST])
    assert sorted(looked) == [(S(0),), (S(1),)]
    assert beam.common == {SECOND: (B,)}
    assert [candidate.outputs for candidate in beam.best()[0]] == [(S(1),), (B,)]


def test_a_tensor_that_is_forgotten_is_held_but_tells_no_states_apart():
    beam = Beam({}, {FIRST: 1})
    choose(beam, 0, way(FIRST, S(0), 2.0), way(FIRST, S(1), 1.0))
    beam.advance(1, lambda held: [way(SECOND, B, 0.0 if held[FIRST] else 1.0)], ())
    assert beam.common == {FIRST: (S(1),), SECOND: (B,)}


def test_only_the_cheapest_states_are_kept_and_what_they_agree_on_is_common():
    beam = Beam({}, {})
    for index in range(6):
        choose(beam, index, way(index, S(0), float(2**index)), way(index, S(1)))
    # Of 64 states 24 are left, none of which has the dearest choice.
    assert beam.common == {5: (S(1),)}


def test_where_no_state_has_a_way_there_is_none():
    beam = Beam({}, {})
    choose(beam, 0, way(FIRST, S(0)), way(FIRST, S(1)))
    assert not choose(beam, 1)
    assert beam.advance(1, lambda held: [way(SECOND, B)] if held[FIRST] == (S(1),) else [], ())
    assert beam.best()[1] == {FIRST: (S(1),), SECOND: (B,)}
