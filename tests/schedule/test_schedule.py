"""Schedules as values: they print and parse, and what is no schedule is refused with everything that is wrong."""

import networkx as nx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from whaleish.schedule import Action, Schedule, interleaved, make_schedule, one_f_one_b, zb_h1

patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    """Any order that dataflow allows, of stages on any devices, some with their backward split."""
    stages, micro_batches = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    places = draw(st.lists(st.integers(0, 3), min_size=stages, max_size=stages))
    numbers = {device: k for k, device in enumerate(sorted(set(places)))}
    split = draw(st.lists(st.booleans(), min_size=stages, max_size=stages))
    chains = [
        [Action("F", m, s) for s in range(stages)]
        + [a for s in reversed(range(stages)) for a in [Action("B", m, s)] + [Action("W", m, s)] * split[s]]
        for m in range(micro_batches)
    ]
    lists: list[list[Action]] = [[] for _ in numbers]
    while any(chains):
        chain = draw(st.sampled_from([chain for chain in chains if chain]))
        action = chain.pop(0)
        lists[numbers[places[action.stage]]].append(action)
    schedule = Schedule(tuple(map(tuple, lists)))
    return schedule.with_transfers() if draw(st.booleans()) else schedule


@patient
@given(schedules())
def test_text(schedule: Schedule) -> None:
    assert Schedule.parse(str(schedule)) == schedule
    assert eval(repr(schedule)) == schedule


@patient
@given(schedules())
def test_transfers_come_and_go(schedule: Schedule) -> None:
    bare, full = schedule.without_transfers(), schedule.with_transfers()
    assert not bare.has_transfers
    assert bare.with_transfers() == full
    assert full.without_transfers() == bare
    crossings = sum(a != b for a, b in zip(bare.places, bare.places[1:], strict=False))
    sends = [action for actions in full.devices for action in actions if action.kind[0] == "S"]
    assert len(sends) == 2 * crossings * bare.micro_batches  # an activation there, a gradient back
    for action in sends:
        there = full.needs(action)[0]
        assert (there.kind, there.stage) == (action.kind[1], action.stage)
        assert full.target(there) not in (None, full.places[action.stage])


@patient
@given(schedules(), st.data())
def test_a_schedule_is_what_has_no_cycle(schedule: Schedule, data: st.DataObject) -> None:
    """Two actions of a device change places: it is refused if, and only if, somebody would wait for ever."""
    device = data.draw(st.integers(0, len(schedule.devices) - 1))
    actions = list(schedule.devices[device])
    a, b = data.draw(st.tuples(*[st.integers(0, len(actions) - 1)] * 2))
    actions[a], actions[b] = actions[b], actions[a]
    changed = (*schedule.devices[:device], tuple(actions), *schedule.devices[device + 1 :])
    graph = nx.DiGraph(
        (needed, action) for each in schedule.devices for action in each for needed in schedule.needs(action)
    )
    local = all(
        each.index(needed) < each.index(action)
        for each in changed
        for action in each
        for needed in schedule.needs(action)
        if needed in each
    )
    lanes: dict[object, Action] = {}
    for number, each in enumerate(changed):
        for action in each:
            lane = number if not action.is_transfer else action
            if action.kind[0] == "S":
                lane = (number, schedule.target(schedule.needs(action)[0]))
            if lane in lanes:
                graph.add_edge(lanes[lane], action)
            lanes[lane] = action
    if local and nx.is_directed_acyclic_graph(graph):
        assert Schedule(changed).places == schedule.places
    else:
        with pytest.raises(ValueError, match="for ever" if local else "before"):
            Schedule(changed)


def test_the_text_of_several_stages_names_them() -> None:
    assert str(one_f_one_b(2, 2)) == "F0 F1 B0 B1\nF0 B0 F1 B1\n"
    assert str(interleaved(2, 2, 2)) == "F0.0 F0.1 B0.1 F1.0 B0.0 F1.1 B1.1 B1.0\n"
    assert str(zb_h1(2, 1).with_transfers()) == "F0 SF0 RB0 B0 W0\nRF0 F0 B0 SB0 W0\n"


def test_one_of_ones_own() -> None:
    """A V of stages: the first and the last lie on the same device."""
    text = "F0.0 F1.0 F0.3 B0.3 F1.3 B1.3 B0.0 B1.0\nF0.1 F0.2 F1.1 F1.2 B0.2 B0.1 B1.2 B1.1"
    schedule = make_schedule(text, 4, 2)
    assert schedule.places == (0, 1, 1, 0)
    assert str(schedule.with_transfers()).count("S") == 8
    assert (schedule.registers(0), schedule.registers(3)) == (2, 1)
    assert not any(map(schedule.splits_backward, range(4)))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("F0 B0\nF0 X B0", r"line 2 of the schedule, of device 1: 'X' is not an action; write F, B, W, .*F0\.2"),
        ("F0 B0 F0", r"^this is not a schedule: F0\.0 is there 2 times$"),
        ("F0 B1", r"B0\.0 is missing; F1\.0 is missing$"),
        ("B0 F0", r"device 0 has B0\.0 before F0\.0"),
        ("F0 W0 B0", r"device 0 has W0\.0 before B0\.0"),
        ("F0 F1 B0 W0 B1", r"W1\.0 is missing"),
        ("F0.1 B0.1", "stage 0 is on no device, though there is a stage 1"),
        ("F0.0 B0.0\nF0.0 B0.0", "stage 0 is on the devices 0, 1; a stage has one"),
        ("F0 SF0 B0", r"SF0\.0 has nothing to send"),
        ("F0 SF0 RB0 B0\nF0 B0 SB0", r"RF0\.1 is missing"),
        ("F0 B0\n\nF0.2 B0.2 F0.1 B0.1", "device 1 has no actions"),
        ("", "it has no devices"),
        ("F7 B7", r"B0\.0 is missing; .*; F0\.0 is missing; and 6 more$"),
        (
            "F0 B0 F1 B1\nF1 B1 F0 B0",
            r"wait for each other for ever: B0\.0 waits for B0\.1, which comes after F1\.1 on device 1; "
            r"F1\.1 waits for F1\.0, which comes after B0\.0 on device 0$",
        ),
    ],
)
def test_what_is_no_schedule(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Schedule.parse(text)


@pytest.mark.parametrize(
    ("given_", "stages", "micro_batches", "said"),
    [
        ("pipedream", 2, 2, r"'pipedream' is not a schedule; give 'gpipe', '1f1b', 'zb-h1', 'interleaved\(v\)'"),
        ("interleaved", 2, 2, "'interleaved' is not a schedule"),
        ("interleaved(3)", 4, 2, r"interleaved\(3\) gives each device 3 stages, and there are 4; use a number that"),
        ("interleaved(0)", 4, 2, "a number that divides 4"),
        ("1f1b", 0, 2, "for 0 stages and 2 micro-batches: there is at least one of each"),
        ("gpipe", 2, 0, "for 2 stages and 0 micro-batches"),
        ("F0 B0\nF0 B0", 2, 4, "is for 2 stages and 1 micro-batches; there are 2 and 4"),
    ],
)
def test_names_and_sizes_that_do_not_fit(given_: str, stages: int, micro_batches: int, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        make_schedule(given_, stages, micro_batches)


def test_one_stage_per_device_interleaved_is_1f1b() -> None:
    assert make_schedule("interleaved(1)", 3, 5) == one_f_one_b(3, 5)
