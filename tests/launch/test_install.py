"""`whaleish install-horovod`: what it does without building, and its one line where it cannot build."""

import importlib.util
import pathlib
import subprocess
import sys

import pytest

from whaleish.launch import install, machine, recipe
from whaleish.launch.machine import LaunchError
from whaleish.launch.progress import BuildProgress, parse_percent


def command_line(*arguments, cache, path="/nonexistent", before=""):
    code = f"import sys; {before}; from whaleish.cli import main; sys.exit(main(['install-horovod', *sys.argv[1:]]))"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={"PATH": path, "WHALEISH_CACHE": str(cache), "HOME": str(cache)},
        capture_output=True,
        text=True,
        timeout=60,
    )


WITHOUT_TENSORFLOW = """if 1:
    import importlib.metadata as m
    real = m.version
    def version(name):
        if name.startswith("tensorflow"):
            raise m.PackageNotFoundError(name)
        return real(name)
    m.version = version
"""


@pytest.mark.parametrize(
    ("before", "text"),
    [
        ("pass", "there is no C++ compiler"),
        (f"exec({WITHOUT_TENSORFLOW!r})", "TensorFlow is not installed: pip install"),
        ("import shutil; shutil.which = lambda name, path=None: None", "there is no cmake: pip install cmake"),
        ("import shutil; shutil.which = lambda name, path=None: None", "there is no MPI"),
    ],
)
def test_what_is_missing_is_one_line_and_status_1(tmp_path, before, text):
    run = command_line(cache=tmp_path, before=before)
    assert run.returncode == 1
    (line,) = run.stderr.splitlines()
    assert line.startswith("whaleish install-horovod: ")
    assert text in line


def test_a_cached_and_installed_wheel_is_used_as_it_is(capsys):
    lines = []
    assert install.install(recipe.Options(), prove=False, say=lines.append) == 0
    assert "was built before" in lines[0]
    assert lines[1:] == ["it is installed"]


def test_the_wheel_of_the_cache_is_told_from_another(tmp_path):
    wheel = install.cached_wheel(recipe.key(install.find_tools(), recipe.Options()))
    assert wheel is not None
    assert install.is_installed(wheel)
    other = tmp_path / wheel.name
    other.write_bytes(wheel.read_bytes() + b" ")
    assert not install.is_installed(other)


def test_horovod_finds_mpi_in_environments_other_than_the_one_it_was_built_in():
    """Linked by the path of the building environment alone it would break when that is gone."""
    folder = importlib.util.find_spec("horovod").submodule_search_locations[0]
    (library,) = pathlib.Path(folder).glob("tensorflow/mpi_lib*.so")
    assert recipe.MPI_BESIDE.encode() in library.read_bytes()


def test_cache_folder(monkeypatch):
    monkeypatch.delenv("WHALEISH_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", "/home/me")
    assert install.cache_folder() == pathlib.Path("/home/me/.cache/whaleish")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert install.cache_folder() == pathlib.Path("/xdg/whaleish")
    monkeypatch.setenv("WHALEISH_CACHE", "/mine")
    assert install.cache_folder() == pathlib.Path("/mine")


def test_a_failed_build_names_the_first_error_and_the_log(tmp_path, monkeypatch):
    fake = [sys.executable, "-c", "print('[ 3%] Building'); print('a.cc:1: error: no such thing'); raise SystemExit(1)"]
    monkeypatch.setattr(install, "_pip_wheel", lambda scratch: fake)
    with pytest.raises(LaunchError, match=r"a\.cc:1: error: no such thing; log: .*build\.log"):
        install._build(tmp_path, recipe.Options())
    assert "[ 3%] Building" in (tmp_path / "build.log").read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["build.log"]


def test_a_good_build_puts_the_wheel_into_the_cache(tmp_path, monkeypatch):
    def fake(scratch):
        return [sys.executable, "-c", f"open({scratch + '/horovod-0.28.1-x.whl'!r}, 'w').write('wheel')"]

    monkeypatch.setattr(install, "_pip_wheel", fake)
    monkeypatch.setenv("WHALEISH_CACHE", str(tmp_path))
    tools = install.find_tools()
    wheel = install._build_once(tools, recipe.Options(), rebuild=False, say=lambda text: None)
    assert wheel == install.cached_wheel(recipe.key(tools, recipe.Options()))
    assert wheel.read_text() == "wheel"


def test_the_build_does_not_trust_pips_own_cache():
    """Pip knows a built wheel by Horovod's version alone: one built for another TensorFlow would be taken."""
    assert "--no-cache-dir" in install._pip_wheel("scratch")
    assert f"horovod=={recipe.HOROVOD}" in install._pip_wheel("scratch")


@pytest.mark.parametrize(
    ("log", "error"),
    [
        ("x\na.cc:3:1: error: bad\nmake: *** Error 1", "a.cc:3:1: error: bad"),
        ("x\nCMake Error at CMakeLists.txt:1", "CMake Error at CMakeLists.txt:1"),
        ("ERROR: No matching distribution found", "ERROR: No matching distribution found"),
        ("nothing", "it says no reason"),
    ],
)
def test_first_error(log, error):
    assert install.first_error(log) == error


def test_progress_counts_and_never_goes_back(capsys, monkeypatch):
    assert parse_percent("  [ 42%] Building CXX object a.o") == 42
    assert parse_percent("[100%] Linking") == 100
    assert parse_percent("Collecting horovod") is None
    with BuildProgress() as progress:
        for line in ("[ 10%] Building a", "[ 40%] Building b", "[ 5%] Building c", "[ 41%] Linking d"):
            progress.read(line)
    assert (progress.percent, progress.objects) == (41, 3)


def test_progress_prints_a_line_now_and_then_where_there_is_no_terminal(capsys, monkeypatch):
    monkeypatch.setattr("whaleish.launch.progress.LINE_EVERY_S", 0.0)
    with BuildProgress() as progress:
        progress.read("[ 10%] Building a")
    assert capsys.readouterr().err == "building Horovod: 10%, 1 objects, 0:00\n"


def test_find_tools_finds_what_this_environment_has():
    tools = install.find_tools()
    assert recipe.missing(tools, recipe.Options()) == []
    assert tools.mpi == str(machine.find_mpi())
