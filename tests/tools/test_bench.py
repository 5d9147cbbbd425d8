"""The benchmarks' machinery on made-up contestants, and the real ones' shape."""

import importlib
import json
import math
import subprocess
import sys

import pytest

from tools.bench import __main__ as command
from tools.bench.contestant import Benchmark, Contestant, Target
from tools.bench.measure import MARK, ROOT, BenchError, Figures, environment, measure, quotient
from tools.bench.suite import SUITE
from tools.bench.table import table
from tools.bench.worker import run
from tools.bench.writing import replace_section

FASTER = Target(("ours", "seconds"), ("theirs", "seconds"), 1.05)
SLOWER = Target(("theirs", "seconds"), ("ours", "seconds"), 2, at_least=True)
PROMISE = Target(("ours", "sent"), ("ours", "promised"), 1.02)
BENCHMARK = Benchmark("made-up", "nothing at all", [FASTER, SLOWER, PROMISE], steps=3)


def figures() -> dict[str, Figures]:
    ours = Figures([1.0, 4.0, 2.0], [1.0, 1.0, 1.0], [1e6, 1e6, 1e6], [3.0, 2.0, 1.0], promised=0.99e6)
    return {"theirs": Figures([2.0, 8.0, 6.0], [2.0, 2.0, 2.0], losses=[3.0, 2.0, 1.0]), "ours": ours}


def test_steps_taken_by_turns_are_divided_one_by_one():
    # The quotient of the medians would be 2 / 6.
    assert quotient(FASTER, figures()) == 0.5
    assert quotient(SLOWER, figures()) == 2
    assert quotient(PROMISE, figures()) == pytest.approx(1 / 0.99)


def test_a_figure_that_was_not_measured_meets_no_target():
    assert math.isnan(quotient(Target(("ours", "peak"), ("theirs", "peak"), 1), figures()))
    assert math.isnan(quotient(FASTER, {"ours": Figures([1.0])}))
    assert not FASTER.met(math.nan)
    assert not SLOWER.met(math.nan)


def test_targets_say_what_they_ask():
    assert FASTER.text() == "ours: seconds over theirs's, at most 1.05"
    assert SLOWER.text() == "theirs: seconds over ours's, at least 2"
    assert PROMISE.text() == "ours: sent over promised, at most 1.02"


def test_a_target_may_divide_each_side_before():
    ratio = Target(("ours", "seconds"), ("theirs", "seconds"), 1, over=("own base", "other base"))
    measured = figures() | {"own base": Figures([0.5, 0.5, 0.5]), "other base": Figures([2.0, 2.0, 2.0])}
    assert quotient(ratio, measured) == 4.0 / 3.0  # medians of (2, 8, 4) and (1, 4, 3)
    assert math.isnan(quotient(ratio, figures()))
    assert ratio.text() == "ours: seconds over own base's, by theirs's over other base's, at most 1"


def test_a_target_may_be_a_figure_alone():
    fast, small = Target(("ours", "seconds"), None, 2), Target(("ours", "peak"), None, 3e9)
    measured = figures()
    measured["ours"].peak = 2e9
    assert (quotient(fast, measured), quotient(small, measured)) == (2.0, 2e9)
    assert math.isnan(quotient(fast, {}))
    assert (fast.text(), small.text()) == ("ours: seconds, at most 2", "ours: peak, MB, at most 3000")
    lines = [
        " ".join(line.split()) for line in table(Benchmark("made-up", "", [fast, small], 1), measured).splitlines()
    ]
    assert "| ours: peak, MB, at most 3000 | 2000.000 | met |" in lines


def test_the_table_has_the_columns_that_were_measured():
    text = table(BENCHMARK, figures())
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert lines[0] == (
        "| contestant | median step, s | fastest | CPU, s | last loss | sent per host, MB | by the plan |"
    )
    assert lines[3] == "| ours | 2.000 | 1.000 | 1.00 | 1.00000 | 1.00 | 0.99 |"
    assert "| ours: seconds over theirs's, at most 1.05 | 0.500 | met |" in lines
    missed = [FASTER, Target(("ours", "seconds"), ("theirs", "seconds"), 0.4)]
    assert "**missed**" in table(Benchmark("made-up", "", missed, steps=3), figures())


def test_a_curve_has_the_first_quotient_at_each_rate():
    def at(seconds):
        return {"theirs": Figures([2.0 * seconds]), "ours": Figures([seconds])}

    measured = at(1.0) | {f"{name}, none": Figures([4.0]) for name in at(1.0)}
    text = table(Benchmark("made-up", "", [SLOWER], 1, rate="1gbit", curve=["none"]), measured)
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert lines[-4:] == [
        "| link | theirs: seconds over ours's |",
        " ".join(lines[-3].split()),
        "| 1gbit | 2.000 |",
        "| unlimited | 1.000 |",
    ]


def test_small_figures_keep_their_digits():
    text = table(
        Benchmark("made-up", "", [Target(("ours", "seconds"), None, 3e-4)], 1), {"ours": Figures([2.6e-5], [0.0])}
    )
    assert "| 0.000026 |" in " ".join(text.split())


def test_a_section_is_replaced_and_the_rest_stays():
    document = "before\n<!-- bench a -->\nold\n<!-- end a -->\nafter\n"
    assert replace_section(document, "a", "new\n") == document.replace("old", "new")
    with pytest.raises(ValueError, match="no place for b"):
        replace_section(document, "b", "new\n")


def test_contestants_take_turns_and_warming_is_not_measured():
    order = []

    def contestant(name):
        return Contestant(lambda: order.append(name) or float(len(order)), promised=5.0)

    found = run({"a": contestant("a"), "b": contestant("b")}, 2, 1, lambda: order.append("|"))
    assert [name for name in order if name != "|"] == ["a", "b", "b", "a", "a", "b"]
    assert order.count("|") == 12
    assert [len(found["a"][figure]) for figure in ("seconds", "cpu", "sent", "losses")] == [2, 2, 2, 3]
    assert found["a"]["promised"] == 5.0


def test_processes_get_equal_threads_and_nothing_of_a_launcher(monkeypatch):
    monkeypatch.setenv("HOROVOD_RANK", "3")
    env = environment(Benchmark("made-up", "", [], steps=1, threads=(2, 4)))
    assert (env["TF_NUM_INTRAOP_THREADS"], env["TF_NUM_INTEROP_THREADS"]) == ("2", "4")
    assert "HOROVOD_RANK" not in env


@pytest.mark.parametrize("benchmark", SUITE.values(), ids=SUITE)
def test_targets_speak_of_contestants_that_exist(benchmark):
    module = importlib.import_module(f"tools.bench.{benchmark.name.replace('-', '_')}")
    if hasattr(module, "BUILDERS"):
        named = {line[0] for target in benchmark.targets for line in (target.above, target.below) if line}
        assert named <= {*module.BUILDERS, *getattr(module, "PEERS", ())}
        ours = [name.startswith("whaleish") for name in module.BUILDERS]
        assert any(ours)
        assert ours == sorted(ours), "whaleish comes last"
        assert all(builder.__module__ == module.__name__ for builder in module.BUILDERS.values())
    else:
        assert callable(module.measure)


def test_measuring_puts_ranks_and_processes_together(monkeypatch):
    def ranks(benchmark, names, steps, warm):
        one = {"seconds": [1.0], "cpu": [0.5], "sent": [10], "losses": [1.0, 0.5], "promised": 9.0}
        other = one | {"seconds": [2.0], "sent": [30]}
        return [{"contestants": {"ours": one}, "peak": 7}, {"contestants": {"ours": other}, "peak": 8}]

    monkeypatch.setattr("tools.bench.measure._processes", ranks)
    found = measure(Benchmark("made-up", "", [], steps=1, processes=2, memory=True), 1)["ours"]
    assert (found.seconds, found.cpu, found.sent) == ([2.0, 2.0], [1.0, 1.0], [20, 20])
    assert (found.promised, found.peak) == (9.0, 8)


def test_a_peak_that_was_measured_by_part_is_kept(monkeypatch):
    part = {"seconds": [1.0], "cpu": [1.0], "peak": 5}
    monkeypatch.setattr("tools.bench.measure._processes", lambda *args: [{"contestants": {"part": part}, "peak": 9}])
    assert measure(Benchmark("made-up", "", [], steps=1), 1)["part"].peak == 5


def test_a_contestant_that_fails_is_an_error_with_its_output():
    with pytest.raises(BenchError, match="made_up"):
        measure(BENCHMARK, 1)


def test_an_unknown_name_is_refused(capsys):
    with pytest.raises(SystemExit):
        command.main(["resnet51"])
    assert "no benchmark is called 'resnet51'; there are classifier, embedding" in capsys.readouterr().err


def test_the_document_has_a_place_for_each_benchmark():
    document = command.DOCUMENT.read_text()
    for name in SUITE:
        replace_section(document, name, "")


def test_the_worker_prints_one_line_of_figures():
    code = (
        "import sys, types; from tools.bench import worker; from tools.bench.contestant import Contestant\n"
        "made_up = types.ModuleType('tools.bench.made_up'); made_up.BUILDERS = {'a': lambda: Contestant(lambda: 2.0)}\n"
        "sys.modules['tools.bench.made_up'] = made_up; worker.main(['made-up', 'all', '3', '0'])"
    )
    env = environment(BENCHMARK)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, env=env, check=True)
    (line,) = (line for line in done.stdout.splitlines() if line.startswith(MARK))
    measured = json.loads(line.removeprefix(MARK))
    assert measured["contestants"]["a"]["losses"] == [2.0] * 3
    assert measured["peak"] > 1_000_000
