"""The harness itself: results and failures of ranks come back, and nothing that it started outlives its use."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from tests.cluster.harness import ROOT, RankPool, RanksFailedError, run_script
from whaleish.launch import supervise

OFFSET = 10  # a global of this module, which travels with the functions below


def rank_plus(number):
    import horovod.tensorflow as hvd

    return hvd.rank() + number + OFFSET


def total():
    import horovod.tensorflow as hvd
    import tensorflow as tf

    return float(hvd.allreduce(tf.constant(hvd.rank() + 1.0), op=hvd.Sum, name="total"))


@pytest.mark.parametrize("ranks", [2, 4], indirect=True)
def test_results_come_back_by_rank(ranks):
    assert ranks.run(rank_plus, 5) == [rank + 15 for rank in range(ranks.size)]


@pytest.mark.parametrize("ranks", [2, 4], indirect=True)
def test_ranks_do_collectives(ranks):
    assert ranks.run(total) == [sum(range(1, ranks.size + 1))] * ranks.size


@pytest.mark.parametrize("ranks", [4], indirect=True)
def test_process_sets_are_dynamic(ranks):
    def sum_of_pair():
        import horovod.tensorflow as hvd
        import tensorflow as tf

        pair = hvd.add_process_set([0, 3])  # no row or column of 2 x 2 ranks: those may be there already
        try:
            if hvd.rank() not in pair.ranks:
                return None
            return float(hvd.allreduce(tf.constant(1.0 + hvd.rank()), op=hvd.Sum, process_set=pair, name="pair"))
        finally:
            hvd.remove_process_set(pair)

    assert ranks.run(sum_of_pair) == [5.0, None, None, 5.0]


def test_closures_travel(ranks):
    local = {"a": 1}
    assert ranks.run(lambda: local) == [local, local]


def test_autograph_finds_the_source(ranks):
    def countdown():
        import tensorflow as tf

        @tf.function
        def loop(n):
            total = 0
            while n > 0:
                total += n
                n -= 1
            return total

        return int(loop(tf.constant(4)))

    assert ranks.run(countdown) == [10, 10]


def test_the_pool_is_kept(ranks):
    assert ranks.run(os.getpid) == ranks.run(os.getpid)


def test_an_exception_names_its_rank_and_line(ranks):
    def fail():
        import horovod.tensorflow as hvd

        if hvd.rank() == 1:
            raise ValueError("boom")

    before = ranks.run(os.getpid)
    with pytest.raises(RanksFailedError, match=r"(?s)rank 1 raised.*boom") as caught:
        ranks.run(fail)
    failure = caught.value.failures[1]
    assert (failure.kind, failure.message) == ("ValueError", "boom")
    assert "test_harness.py" in failure.traceback
    assert caught.value.results == {0: None}
    assert ranks.run(os.getpid) == before, "all ranks answered, so the pool can go on"


def test_a_result_that_cannot_travel_is_a_failure_of_its_rank(ranks):
    def unpicklable():
        import threading

        return threading.Lock()

    with pytest.raises(RanksFailedError, match="cannot pickle"):
        ranks.run(unpicklable)


def test_a_dead_rank_is_named_and_the_pool_recovers(ranks):
    def die():
        import horovod.tensorflow as hvd

        if hvd.rank() == 1:
            os._exit(3)
        return total()

    start = time.monotonic()
    with pytest.raises(RanksFailedError, match="rank 1 died"):
        ranks.run(die)
    assert time.monotonic() - start < 20
    assert ranks.run(total) == [3.0, 3.0]


def test_a_pool_whose_horovod_has_ended_is_started_anew(ranks):
    def shut_down():
        import horovod.tensorflow as hvd

        hvd.shutdown()
        return total()

    with pytest.raises(RanksFailedError):
        ranks.run(shut_down)
    assert ranks.run(total) == [3.0, 3.0]


def test_a_hung_rank_ends_at_the_limit_with_its_stack():
    pool = RankPool(2)

    def hang():
        import horovod.tensorflow as hvd

        if hvd.rank() == 0:
            total()

    with pytest.raises(RanksFailedError, match=r"(?s)ranks \[0\] had not returned 3 s.*in total") as caught:
        pool.run(hang, timeout=3)
    assert caught.value.silent == (0,)
    assert 1 in caught.value.results


def live(pids):
    return [pid for pid in pids if psutil.pid_exists(pid) and supervise.lives(psutil.Process(pid))]


def test_a_killed_pool_leaves_no_process():
    pool = RankPool(2)
    pids = pool.run(os.getpid)
    assert live(pids) == pids
    pool.kill()
    assert live(pids) == []


def test_ranks_end_when_the_tests_are_killed():
    code = "import os, time; from tests.cluster.harness import RankPool; print(*RankPool(2).run(os.getpid), flush=True)"
    tests = subprocess.Popen([sys.executable, "-c", f"{code}; time.sleep(600)"], stdout=subprocess.PIPE, cwd=ROOT)
    pids = [int(pid) for pid in tests.stdout.readline().split()]
    assert live(pids) == pids
    tests.kill()
    tests.wait()
    deadline = time.monotonic() + 10
    while live(pids) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert live(pids) == []


def test_idle_ranks_use_no_core(ranks):
    processes = [psutil.Process(pid) for pid in ranks.run(os.getpid)]
    before = [sum(process.cpu_times()[:2]) for process in processes]
    time.sleep(1)
    after = [sum(process.cpu_times()[:2]) for process in processes]
    assert all(b - a < 0.1 for a, b in zip(before, after, strict=True)), "a waiting rank spins"


SCRIPT = """
import os, signal, sys, time
import horovod.tensorflow as hvd
hvd.init()
if hvd.rank() == 1:
    {act}
sys.stdout.write(f"rank {{hvd.rank()}} of {{hvd.size()}} args {{sys.argv[1:]}}\\n")
"""


def test_run_script_gives_output_and_status():
    result = run_script(2, SCRIPT.format(act="pass"), "--x", "1")
    assert result.status == 0, result.output
    assert "rank 0 of 2 args ['--x', '1']" in result.output
    assert "rank 1 of 2" in result.output
    assert not result.survivors


def test_run_script_ends_what_hangs():
    result = run_script(2, SCRIPT.format(act="time.sleep(600)"), timeout=15)
    assert result.timed_out
    assert result.status != 0
    assert not result.survivors


def test_after_start_can_interrupt_a_script():
    def interrupt(process):
        for line in process.stdout:
            if "whaleish run: horovodrun" in line:
                break
        time.sleep(1)
        process.send_signal(signal.SIGTERM)

    result = run_script(2, SCRIPT.format(act="time.sleep(600)"), after_start=interrupt)
    assert result.status == 128 + signal.SIGTERM
    assert not result.survivors
