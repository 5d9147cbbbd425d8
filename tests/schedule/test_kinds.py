"""Every kind of schedule, for all sizes that matter: its order, what it holds, and how long it takes."""

import itertools
import pathlib
import re

import pytest

from whaleish.schedule import Costs, Schedule, gpipe, interleaved, make_schedule, one_f_one_b, timeline, zb_h1
from whaleish.schedule.action import COMPUTE, Action

GOLDEN = pathlib.Path(__file__).parent / "golden"
STAGES, MICRO_BATCHES, PER_DEVICE = range(1, 9), range(1, 17), range(1, 5)
SIZES = list(itertools.product(STAGES, MICRO_BATCHES))
PINNED = {"gpipe": (1, 2, 3), "1f1b": (1, 2, 4), "zb-h1": (1, 2, 4), "interleaved(2)": (2, 4, 6)}
"""Name -> numbers of stages of which the schedules stand in a file."""


@pytest.mark.parametrize("name", PINNED)
def test_golden(name: str) -> None:
    """To renew a file: delete it, run this test twice and read the difference."""
    sections = []
    for stages, micro_batches in itertools.product(PINNED[name], (1, 3, 4, 8)):
        schedule = make_schedule(name, stages, micro_batches)
        variants = {"": schedule, ", with transfers": schedule.with_transfers()}
        for variant, shown in list(variants.items())[: 2 if stages > 1 and micro_batches == 3 else 1]:
            sections.append(f"# {stages} stages, {micro_batches} micro-batches{variant}\n{shown}")
            assert Schedule.parse(str(shown)) == shown
    path, text = GOLDEN / (name.replace("(", "-").rstrip(")") + ".txt"), "\n".join(sections)
    if not path.exists():
        path.write_text(text)
        pytest.fail(f"{path.name} was not there and has been written")
    assert text == path.read_text()


@pytest.mark.parametrize("build", [gpipe, one_f_one_b, zb_h1])
@pytest.mark.parametrize("stages", STAGES)
def test_each_stage_does_everything_once_and_in_order(build, stages: int) -> None:
    for micro_batches in MICRO_BATCHES:
        schedule = build(stages, micro_batches)
        assert schedule.places == tuple(range(stages))
        for stage, actions in enumerate(schedule.devices):
            kinds = COMPUTE if build is zb_h1 else COMPUTE[:2]
            assert sorted(actions) == sorted(Action(kind, m, stage) for kind in kinds for m in range(micro_batches))
            for kind in kinds:  # gradients are added up in the same order by all of them
                assert [a.micro_batch for a in actions if a.kind == kind] == list(range(micro_batches))
            for m in range(micro_batches):
                positions = [actions.index(Action(kind, m, stage)) for kind in kinds]
                assert positions == sorted(positions)


def test_live_activations_and_bubbles_of_gpipe() -> None:
    for stages, micro_batches in SIZES:
        schedule = gpipe(stages, micro_batches)
        for costs in (Costs(), Costs(3, 2, 2), Costs(2, 1, 0)):
            _is_close(timeline(schedule, costs).bubble, (stages - 1) / (micro_batches + stages - 1))
        assert _peaks(schedule) == [micro_batches] * stages


def test_live_activations_and_bubbles_of_1f1b() -> None:
    for stages, micro_batches in SIZES:
        schedule = one_f_one_b(stages, micro_batches)
        for costs in (Costs(), Costs(3, 2, 2), Costs(2, 1, 0)):
            _is_close(timeline(schedule, costs).bubble, (stages - 1) / (micro_batches + stages - 1))
        assert _peaks(schedule) == [min(micro_batches, stages - stage) for stage in range(stages)]


@pytest.mark.parametrize("per_device", PER_DEVICE)
def test_bubbles_of_interleaved(per_device: int) -> None:
    """(D - 1) / v micro-batches' worth of bubble from M = D on; below it the time that one micro-batch needs rules."""
    for devices, micro_batches in SIZES:
        schedule = interleaved(devices * per_device, micro_batches, per_device)
        assert schedule.places == tuple(stage % devices for stage in range(devices * per_device))
        for costs in (Costs(), Costs(3, 2, 2), Costs(2, 1, 0)):
            seconds = costs.forward + costs.backward + costs.weight
            rounds = per_device * max(micro_batches, devices) + min(micro_batches, devices) - 1
            line = timeline(schedule, costs)
            _is_close(line.makespan, rounds * seconds)
            if micro_batches >= devices:
                bubble = (devices - 1) / per_device
                _is_close(line.bubble, bubble / (micro_batches + bubble))
        if micro_batches % devices == 0 and per_device > 1:  # as many as Megatron-LM's warm-up, and one
            ahead = (per_device - 1) * devices + 2 * (devices - 1) + 1
            assert _peak_of_device(schedule, 0) == min(per_device * micro_batches, ahead)


def test_live_activations_and_bubbles_of_zb_h1() -> None:
    for stages, micro_batches in SIZES:
        schedule = zb_h1(stages, micro_batches)
        assert _peaks(schedule) == [min(micro_batches, stages)] * stages
        for costs in (Costs(), Costs(2, 2, 1), Costs(3, 2, 1), Costs(1, 2, 1), Costs(2, 1, 0)):
            forward, backward, weight = costs.forward, costs.backward, costs.weight
            work = micro_batches * (forward + backward + weight)
            bubble = timeline(schedule, costs).makespan - work
            filled = min(stages, micro_batches) - 1
            _is_close(bubble, (stages - 1) * (forward + backward) - filled * weight)
            whole = timeline(one_f_one_b(stages, micro_batches), costs).makespan - work
            _is_close(whole, (stages - 1) * (forward + backward + weight))


def test_stages_of_unequal_cost_and_links_of_some() -> None:
    """No formula any more: no action begins before its time, and the slowest stage bounds the step from below."""
    for build, transfer in itertools.product((gpipe, one_f_one_b, zb_h1), (0.0, 0.25)):
        costs = Costs((1.0, 3.0, 2.0), (2.0, 1.0, 2.0), (0.5, 0.5, 1.5), transfer)
        line = timeline(build(3, 5), costs)
        assert line.makespan >= max(line.busy(device) for device in range(3)) == pytest.approx(5 * 5.5)
        ends = {span.action: span.end for spans in line.devices for span in spans}
        for spans in line.devices:
            computed = [span for span in spans if not span.action.is_transfer]
            assert all(b.begin >= a.end for a, b in itertools.pairwise(computed))
            for action, begin, _ in spans:
                assert all(ends[needed] <= begin for needed in line.schedule.needs(action))
        assert line.schedule.has_transfers == bool(transfer)


def test_transfers_wait_for_their_link_and_not_for_the_device() -> None:
    line = timeline(one_f_one_b(2, 2), Costs(1, 1, 0, transfer=5))
    began = {str(span.action): (span.begin, span.end) for spans in line.devices for span in spans}
    assert began["F1.0"] == (1, 2)  # while F0's activation is on its way
    assert (began["SF0.0"], began["SF1.0"]) == ((1, 6), (6, 11))  # one after the other on one link
    assert began["RF1.1"] == (11, 11)
    assert began["SB0.1"] == (8, 13)  # the link back is another one, and has waited for F1 of nobody
    assert line.makespan == began["B1.0"][1] == 19


def test_live_activations_over_time() -> None:
    line = timeline(one_f_one_b(2, 3), Costs(1, 1, 0))
    assert line.live(0) == [(0, 1), (1, 2), (6, 1), (8, 0)]  # at 4, B0 ends and F2 begins


PICTURES = {gpipe: (2, 4), one_f_one_b: (2, 4), zb_h1: (2, 4)}


@pytest.mark.parametrize("build", PICTURES)
def test_the_pictures_in_the_docstrings(build) -> None:
    _shows(build.__doc__, build(*PICTURES[build]), Costs(1, 1, 1 if build is zb_h1 else 0))


def test_the_picture_of_interleaved() -> None:
    _shows(interleaved.__doc__, interleaved(4, 2, 2), Costs(1, 1, 0))


def _shows(docstring: str, schedule: Schedule, costs: Costs) -> None:
    drawn = re.findall(r"^ +((?:[FBW]\d|\. ).*)$", docstring, re.MULTILINE)
    line = timeline(schedule, costs)
    for device, picture in enumerate(drawn):
        columns = {round(span.begin): span.action for span in line.devices[device]}
        alone = None if schedule.stages > len(schedule.devices) else device
        words = [columns[k].text(alone) if k in columns else "." for k in range(round(line.makespan))]
        assert " ".join(words).rstrip(" .") == re.sub(" +", " ", picture).rstrip(" .")
    assert len(drawn) == len(schedule.devices)


def _peaks(schedule: Schedule) -> list[int]:
    """For each stage the most micro-batches live at once: counted by order, and once more by the clock."""
    clock = timeline(schedule, Costs(1, 1, 1))
    peaks = []
    for stage in range(schedule.stages):
        live = clock.live(stage)
        peaks.append(max(count for _, count in live))
        assert peaks[-1] == schedule.registers(stage)
        assert live[-1][1] == schedule.live(stage)[-1] == 0
    return peaks


def _peak_of_device(schedule: Schedule, device: int) -> int:
    stages = [stage for stage, place in enumerate(schedule.places) if place == device]
    return max(map(sum, zip(*(schedule.live(stage) for stage in stages), strict=True)))


def _is_close(value: float, expected: float) -> None:
    assert value == pytest.approx(expected, rel=1e-9, abs=1e-9)
