"""Real ranks for tests: a pool of processes that stay, and scripts on fresh ones; every wait has a limit."""

import collections
import contextlib
import ctypes
import io
import marshal
import multiprocessing.connection
import os
import pathlib
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import cloudpickle
import psutil

from whaleish.launch import engine, machine, supervise

ROOT = pathlib.Path(__file__).parents[2]
START_LIMIT_S = 180.0
RUN_LIMIT_S = 60.0
SCRIPT_LIMIT_S = 120.0  # starting takes a good part of it on a busy machine
# A rank that has failed leaves its peers waiting in a collective; this long they may take to fail as well.
AFTERMATH_S = 5.0
_PRCTL = ctypes.CDLL(None).prctl  # looked up here: little is safe between fork and exec
_PR_SET_PDEATHSIG = 1
HEAVY_BYTES = 3 << 29  # of a rank's memory; TensorFlow alone has half of that, and what large models took stays taken
MARK = "WHALEISH_TEST_RUN"  # in the environment of all that a test started, to find what survived


@dataclass(frozen=True)
class Failure:
    """What one rank raised. `fatal`: its Horovod has ended."""

    rank: int
    kind: str
    message: str
    traceback: str
    fatal: bool


class RanksFailedError(AssertionError):
    """A function did not return on every rank.

    Attributes:
        failures: rank to what it raised.
        silent: the ranks that gave no answer in time, or died.
        results: rank to result, of the ranks that returned.
    """

    def __init__(self, text: str, failures: Mapping[int, Failure], silent: Sequence[int], results: Mapping[int, Any]):
        super().__init__(text)
        self.failures, self.silent, self.results = dict(failures), tuple(silent), dict(results)


class RankPool:
    """`size` processes under mpirun that have TensorFlow and Horovod up; started at the first `run`.

        pool = RankPool(2)
        pool.run(lambda x: hvd.rank() + x, 10)   # [10, 11]

    Functions travel by cloudpickle, those of test modules by value: what they refer to must be importable on the
    ranks or picklable. A pool whose ranks died, overstayed or grew heavy is killed, and started anew by the next `run`.
    """

    def __init__(self, size: int):
        self.size = size
        self._launcher: subprocess.Popen[bytes] | None = None
        self._connections: dict[int, Any] = {}
        self._pids: dict[int, int] = {}
        self._log: pathlib.Path | None = None

    def run(self, function: Callable[..., Any], *args: Any, timeout: float = RUN_LIMIT_S, **kwargs: Any) -> list[Any]:
        """Call a function on every rank; returns the results by rank.

        Raises:
            RanksFailedError: a rank raised, died, or did not return within `timeout` seconds.
        """
        message = _pickle(function, args, kwargs)
        if self._launcher is None or self._launcher.poll() is not None:
            self.kill()
            self._start()
        try:
            self._resume()
            for connection in self._connections.values():
                connection.send_bytes(message)
            return self._collect(getattr(function, "__name__", repr(function)), timeout)
        except RanksFailedError as error:
            # When every rank has answered none waits for another, and the pool can go on; unless Horovod has ended.
            if error.silent or any(failure.fatal for failure in error.failures.values()):
                self.kill()
            raise
        except BaseException:  # the test's own time limit, or Ctrl-C: the ranks are in the middle of something
            self.kill()
            raise
        finally:
            self._pause()
            if any(_resident_bytes(pid) > HEAVY_BYTES for pid in self._pids.values()):
                self.kill()

    def _collect(self, name: str, timeout: float) -> list[Any]:
        results: dict[int, Any] = {}
        failures: dict[int, Failure] = {}
        dead: list[int] = []
        waiting = {connection: rank for rank, connection in self._connections.items()}
        start = time.monotonic()
        deadline = start + timeout
        while waiting and time.monotonic() < deadline:
            for ready in multiprocessing.connection.wait(list(waiting), timeout=deadline - time.monotonic()):
                rank = waiting.pop(ready)
                try:
                    good, value = cloudpickle.loads(ready.recv_bytes())
                except (EOFError, OSError):
                    dead.append(rank)
                else:
                    if good:
                        results[rank] = value
                    else:
                        failures[rank] = Failure(rank, *value)
            if failures or dead:
                deadline = min(deadline, time.monotonic() + AFTERMATH_S)
        if len(results) == self.size:
            return [results[rank] for rank in range(self.size)]
        silent = sorted([*dead, *waiting.values()])
        text = self._explain(name, timeout, failures, dead, sorted(waiting.values()))
        raise RanksFailedError(text, failures, silent, results)

    def _explain(
        self, name: str, timeout: float, failures: Mapping[int, Failure], dead: list[int], hung: list[int]
    ) -> str:
        lines = [f"{name} failed on {self.size} ranks"]
        lines += [f"rank {rank} raised:\n{failures[rank].traceback.rstrip()}" for rank in sorted(failures)]
        lines += [f"rank {rank} died" for rank in dead]
        if hung:
            after = f"{AFTERMATH_S:.0f} s after the first failure" if failures or dead else f"{timeout:.0f} s"
            lines.append(f"ranks {hung} had not returned {after}; their threads are in the log below")
            for rank in hung:
                os.kill(self._pids[rank], signal.SIGUSR1)
            time.sleep(1)
        if (dead or hung) and self._log is not None:
            lines.append("--- the end of the log of the ranks ---")
            lines += _untagged(self._log.read_text(errors="replace")).splitlines()[-150:]
        return "\n".join(lines)

    def _start(self) -> None:
        """Start the ranks and wait until each has said who it is."""
        folder = pathlib.Path(tempfile.mkdtemp(prefix="whaleish-pool-"))
        self._log = folder / "ranks.log"
        key = secrets.token_bytes(16)
        with multiprocessing.connection.Listener(str(folder / "socket"), "AF_UNIX", 16, authkey=key) as listener:
            worker = [sys.executable, str(ROOT / "tests/cluster/worker.py"), str(folder / "socket")]
            env = rank_environment() | {"WHALEISH_POOL_KEY": key.hex()}
            with self._log.open("wb") as log:
                self._launcher = subprocess.Popen(
                    mpi_command(self.size, worker),
                    env=env,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd=ROOT,
                    start_new_session=True,
                    preexec_fn=_die_with_parent,
                )
            try:
                self._greet(listener)
            except BaseException:
                self.kill()
                raise

    def _greet(self, listener: multiprocessing.connection.Listener) -> None:
        arrived: list[Any] = []
        deadline = time.monotonic() + START_LIMIT_S
        assert self._launcher is not None
        # Listener.accept has no limit of its own; its socket has.
        listener._listener._socket.settimeout(0.5)  # type: ignore[attr-defined]
        while len(self._connections) < self.size:
            if self._launcher.poll() is not None or time.monotonic() > deadline:
                assert self._log is not None
                raise RuntimeError(
                    f"{self.size} ranks did not start within {START_LIMIT_S:.0f} s "
                    f"(launcher's status: {self._launcher.poll()}); their log:\n{self._log.read_text(errors='replace')}"
                )
            if len(arrived) < self.size:
                try:
                    arrived.append(listener.accept())
                except TimeoutError:
                    continue
            for connection in multiprocessing.connection.wait(arrived, timeout=0.2):
                if connection not in self._connections.values():
                    rank, pid = connection.recv()
                    self._connections[rank], self._pids[rank] = connection, pid

    def _pause(self) -> None:
        """Stop the idle ranks: Horovod's threads poll each other all the time, and keep the cores from other tests."""
        for pid in self._pids.values():
            _send(pid, signal.SIGSTOP)

    def _resume(self) -> None:
        for pid in self._pids.values():
            _send(pid, signal.SIGCONT)

    def kill(self) -> None:
        """End every process of the pool, at once."""
        if self._launcher is None:
            return
        processes = _below(self._launcher.pid)
        for pid in {*self._pids.values()} - {process.pid for process in processes}:
            if psutil.pid_exists(pid):
                processes.append(psutil.Process(pid))
        supervise.end_processes(processes, grace_s=0)
        self._launcher.wait()
        for connection in self._connections.values():
            connection.close()
        self._launcher, self._connections, self._pids = None, {}, {}


def _resident_bytes(pid: int) -> int:
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.NoSuchProcess:
        return 0


def mpi_command(size: int, program: Sequence[str]) -> list[str]:
    """What `horovodrun --mpi` runs on one host, without the seconds that it takes to import TensorFlow itself."""
    here = machine.find_machine()
    engine.choose(here, size, program, python=sys.executable, engine="mpi")  # says so where there is no MPI
    base = ["mpirun", "--allow-run-as-root", "--tag-output", "-np", str(size), "-H", f"localhost:{size}"]
    base += ["-bind-to", "none", "-map-by", "slot", "-mca", "pml", "ob1", "-mca", "btl", "^openib"]
    return [*base, *engine.mpi_flags(here, size), *program]


def rank_environment() -> dict[str, str]:
    """The environment of test ranks: CPU only, one compute thread each, Horovod quick and with dynamic process sets."""
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith(("HOROVOD_", "OMPI_", "PMIX_"))
    }
    return inherited | {
        "CUDA_VISIBLE_DEVICES": "-1",
        "HOROVOD_CYCLE_TIME": "1",
        "HOROVOD_DYNAMIC_PROCESS_SETS": "1",
        "OMP_NUM_THREADS": "1",
        "PATH": machine.search_path(),
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep),
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "TF_NUM_INTEROP_THREADS": "2",
        "TF_NUM_INTRAOP_THREADS": "1",
    }


@dataclass(frozen=True)
class ScriptResult:
    """How a script on fresh ranks ended. `survivors`: pids that were still there 2 s after the launcher had ended."""

    status: int
    output: str
    seconds: float
    timed_out: bool
    survivors: tuple[int, ...]


def run_script(
    size: int,
    script: str | pathlib.Path,
    *args: str,
    timeout: float = SCRIPT_LIMIT_S,
    engine_name: str = "auto",
    env: Mapping[str, str] | None = None,
    after_start: Callable[[subprocess.Popen[str]], None] | None = None,
) -> ScriptResult:
    """Run a script under `whaleish run` on ranks of its own, for tests of ranks that fail.

    Args:
        script: a path, or the source itself (a string of more than one line).
        timeout: seconds after which everything is ended, and `timed_out` is true.
        env: added to `rank_environment()`.
        after_start: called with the launcher right after it started, for instance to send it a signal later.
    """
    mark = secrets.token_hex(8)
    with tempfile.TemporaryDirectory(prefix="whaleish-script-") as folder:
        path = pathlib.Path(script) if isinstance(script, pathlib.Path) or "\n" not in script else None
        if path is None:
            path = pathlib.Path(folder) / "script.py"
            path.write_text(str(script), encoding="utf-8")
        command = [sys.executable, "-m", "whaleish.cli", "run", "-np", str(size), "--engine", engine_name, str(path)]
        start = time.monotonic()
        process = subprocess.Popen(
            [*command, *args],
            env=rank_environment() | {MARK: mark} | dict(env or {}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            cwd=ROOT,
            start_new_session=True,
        )
        timed_out = False
        try:
            if after_start is not None:
                after_start(process)
            output, _ = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            timed_out = True
            supervise.end_processes(_marked(mark), grace_s=0)
            output, _ = process.communicate()
        except BaseException:
            supervise.end_processes(_marked(mark), grace_s=0)
            raise
        seconds = time.monotonic() - start
        deadline = time.monotonic() + 2
        while (survivors := _marked(mark)) and time.monotonic() < deadline:
            time.sleep(0.1)
        supervise.end_processes(survivors, grace_s=0)
    pids = tuple(process.pid for process in survivors)
    return ScriptResult(process.returncode, _untagged(output), seconds, timed_out, pids)


def _untagged(output: str) -> str:
    """What mpirun printed, with its tags at the beginning of lines only: it tags each piece that was written."""
    return re.sub(r"(?m)(?<!^)\[\d+,\d+\]<std(?:err|out)>:", "", output)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Cloudpickle, with code objects that keep their file: AutoGraph and tracebacks read the source there."""

    dispatch_table: ClassVar = collections.ChainMap(
        {types.CodeType: lambda code: (marshal.loads, (marshal.dumps(code),))}, cloudpickle.Pickler.dispatch_table
    )


def _pickle(function: Callable[..., Any], args: Any, kwargs: Any) -> bytes:
    """Pickle a call; functions of test modules go by value, as the ranks need not be able to import those."""
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    by_value = module is not None and (module.__name__.startswith("tests.") or "test_" in module.__name__)
    stream = io.BytesIO()
    if by_value:
        cloudpickle.register_pickle_by_value(module)
    try:
        _Pickler(stream).dump((function, args, kwargs))
    finally:
        if by_value:
            cloudpickle.unregister_pickle_by_value(module)
    return stream.getvalue()


def _die_with_parent() -> None:
    """Runs in the launcher before it becomes mpirun: if the tests are killed, so is it, and its ranks follow."""
    _PRCTL(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _below(pid: int) -> list[psutil.Process]:
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _marked(mark: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark and supervise.lives(process):
                found.append(process)
        except psutil.Error:
            continue
    return found


def _send(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
