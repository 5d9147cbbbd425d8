"""`whaleish install-horovod`: builds the unmodified release for the TensorFlow that is here, once, and installs it."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.metadata
import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator

import psutil

from whaleish import versions
from whaleish.launch import machine, proven, recipe
from whaleish.launch.machine import LaunchError
from whaleish.launch.progress import BuildProgress

CACHE_VARIABLE = "WHALEISH_CACHE"
GB_PER_COMPILER = 1.2
RUNTIME_PACKAGES = ("cloudpickle", "packaging", "psutil", "pyyaml")  # what the release asks for


def install(options: recipe.Options, *, rebuild: bool = False, prove: bool = True, say: Callable[[str], None]) -> int:
    """Build (unless cached), install and prove Horovod; returns the exit status.

    Raises:
        LaunchError: something is missing, or a step failed; one line.
    """
    tools = find_tools()
    wheel = cached_wheel(recipe.key(tools, options))
    if rebuild or wheel is None:
        in_the_way = recipe.missing(tools, options)
        if in_the_way:
            raise LaunchError("; ".join(in_the_way))
        wheel = _build_once(tools, options, rebuild=rebuild, say=say)
    else:
        say(f"Horovod {recipe.HOROVOD} was built before: {wheel}")
    if not rebuild and is_installed(wheel):
        say("it is installed")
    else:
        _pip("install", "--quiet", *RUNTIME_PACKAGES, what="installing what Horovod needs")
        _pip("install", "--quiet", "--no-deps", "--force-reinstall", str(wheel), what="installing the wheel")
        say(f"installed {wheel.name}")
    if not prove:
        return 0
    for engine in ("mpi", "gloo") if options.mpi else ("gloo",):
        proof = proven.prove(engine)
        if not proof.works:
            log = wheel.with_name(f"proof-{engine}.log")
            log.write_text(proof.output, encoding="utf-8")
            raise LaunchError(
                f"{proof.text}; what the ranks printed is in {log}; `whaleish doctor` looks for the cause"
            )
        say(proof.text)
    return 0


def find_tools() -> recipe.Tools:
    path = machine.search_path()
    mpi = machine.find_mpi()
    tensorflow = _tensorflow_distribution()
    wrong = versions.problems({"TensorFlow": tensorflow.rpartition(" ")[2]}) if tensorflow else []
    return recipe.Tools(
        tensorflow=tensorflow,
        tensorflow_supported=not any(line.startswith("TensorFlow") for line in wrong),
        compiler=next((found for name in recipe.COMPILERS if (found := shutil.which(name, path=path))), None)
        or shutil.which(os.environ.get("CXX", ""), path=path),
        cmake=os.environ.get("HOROVOD_CMAKE") or shutil.which("cmake", path=path),
        mpi=str(mpi) if mpi else None,
        mpi_usable=mpi is not None and mpi.usable,
        mpi_compiler=shutil.which("mpicxx", path=path),
        nvcc=os.environ.get("HOROVOD_CUDA_HOME") or shutil.which("nvcc", path=path),
        build_packages=tuple(name for name in ("setuptools", "wheel") if importlib.util.find_spec(name) is None),
    )


def _tensorflow_distribution() -> str | None:
    row = next(row for row in versions.SUPPORTED if row.name == "TensorFlow")
    for name in row.distributions:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return f"{name} {importlib.metadata.version(name)}"
    return None


def cache_folder() -> pathlib.Path:
    """Where wheels are kept: $WHALEISH_CACHE, or whaleish in $XDG_CACHE_HOME, or in ~/.cache."""
    if os.environ.get(CACHE_VARIABLE):
        return pathlib.Path(os.environ[CACHE_VARIABLE])
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return pathlib.Path(home) / "whaleish"


def cached_wheel(key: str) -> pathlib.Path | None:
    return next(iter(sorted((cache_folder() / key).glob("horovod-*.whl"))), None)


def is_installed(wheel: pathlib.Path) -> bool:
    """Whether the Horovod installed here is this wheel: one of the same version built otherwise is not."""
    horovod = machine.find_horovod()
    return horovod is not None and horovod.sha256 == hashlib.sha256(wheel.read_bytes()).hexdigest()


def _build_once(
    tools: recipe.Tools, options: recipe.Options, *, rebuild: bool, say: Callable[[str], None]
) -> pathlib.Path:
    """Build into the cache, unless another process has just done so."""
    folder = cache_folder() / recipe.key(tools, options)
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder / "lock", say):
        wheel = cached_wheel(folder.name)
        if wheel is not None and not rebuild:
            return wheel
        say(f"building Horovod {recipe.HOROVOD} for {tools.tensorflow}: 3 to 6 minutes on 2 cores")
        say(f"log: {folder / 'build.log'}")
        return _build(folder, options)


def _build(folder: pathlib.Path, options: recipe.Options) -> pathlib.Path:
    spec = importlib.util.find_spec("tensorflow")
    if spec is None or not spec.submodule_search_locations:
        raise LaunchError("TensorFlow is installed without its files; install it again")
    headers = pathlib.Path(next(iter(spec.submodule_search_locations))) / "include"
    jobs = max(1, min(machine.cores(), int(psutil.virtual_memory().available / 2**30 / GB_PER_COMPILER)))
    with tempfile.TemporaryDirectory(dir=folder, prefix="building-") as scratch:
        shim = recipe.write_shim(pathlib.Path(scratch) / "shim")
        env = recipe.build_environment(os.environ, machine.search_path(), headers, shim, options, jobs)
        env["TMPDIR"] = scratch  # an interrupted pip leaves its sources behind
        log = folder / "build.log"
        status = _run_logged(_pip_wheel(scratch), env, log)
        built = sorted(pathlib.Path(scratch).glob("horovod-*.whl"))
        if status or not built:
            raise LaunchError(
                f"the build of Horovod failed: {first_error(log.read_text(errors='replace'))}; log: {log}"
            )
        wheel = folder / built[0].name
        os.replace(built[0], wheel)
        return wheel


def _pip_wheel(scratch: str) -> list[str]:
    # Not from pip's own cache: it knows wheels by Horovod's version alone, not by TensorFlow's.
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "-v", "--no-cache-dir"]
    return [*pip, "--no-deps", "--no-build-isolation", f"horovod=={recipe.HOROVOD}", "-w", scratch]


def _run_logged(command: list[str], env: dict[str, str], log: pathlib.Path) -> int:
    with log.open("w", encoding="utf-8") as file, BuildProgress() as progress:
        process = subprocess.Popen(
            command,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        assert process.stdout is not None
        try:
            for line in process.stdout:
                file.write(line)
                progress.read(line)
            return process.wait()
        except BaseException:
            # Ctrl-C: the compilers are not in this terminal's group, and must not go on alone.
            from whaleish.launch import supervise

            with contextlib.suppress(psutil.NoSuchProcess):
                root = psutil.Process(process.pid)
                supervise.end_processes([*root.children(recursive=True), root])
            raise


def first_error(log: str) -> str:
    """The line of a build's log that says what went wrong, as well as can be told."""
    for mark in (" error: ", "CMake Error", "error:", "ERROR:", "Error"):
        for line in log.splitlines():
            if mark in line:
                return line.strip()[:300]
    return "it says no reason"


@contextlib.contextmanager
def _locked(path: pathlib.Path, say: Callable[[str], None]) -> Iterator[None]:
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            say("another process is building the same wheel; waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _pip(*arguments: str, what: str) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    run = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    if run.returncode:
        lines = run.stderr.strip().splitlines() or run.stdout.strip().splitlines() or ["no reason given"]
        raise LaunchError(f"{what} failed: {lines[-1]}")
