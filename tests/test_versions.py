"""The table of supported versions, the check on it, and its copy in the README."""

import pathlib
import re
import subprocess
import sys

import pytest

from whaleish import versions

ROOT = pathlib.Path(__file__).parents[1]
GOOD = {row.name: row.tested for row in versions.SUPPORTED}


def test_the_tested_versions_are_allowed():
    assert versions.problems(GOOD) == []


def test_readme_shows_the_table():
    assert versions.as_markdown() in (ROOT / "README.md").read_text(encoding="utf-8")


def test_setup_asks_for_the_same_ranges():
    setup = (ROOT / "setup.py").read_text(encoding="utf-8")
    for row in versions.SUPPORTED:
        if row.name != "Horovod":  # built by `whaleish install-horovod`, never by pip's resolver
            assert row.allowed in setup, row


def test_the_lock_holds_the_tested_versions():
    lock = (ROOT / "constraints.txt").read_text(encoding="utf-8").lower().replace("_", "-")
    for row in versions.SUPPORTED:
        if row.distributions and row.name != "Horovod":
            assert any(f"{name}=={row.tested}\n" in lock for name in row.distributions), row


@pytest.mark.parametrize(
    ("name", "version"),
    [("TensorFlow", "2.20.1"), ("TensorFlow", "2.22.0"), ("Keras", "2.15.0"), ("Horovod", "0.28.0"), ("NumPy", "odd")],
)
def test_a_wrong_version_says_found_allowed_and_what_to_do(name, version):
    (line,) = versions.problems(GOOD | {name: version})
    row = next(row for row in versions.SUPPORTED if row.name == name)
    assert version in line
    assert row.allowed in line
    assert row.install in line


def test_horovod_may_be_missing_and_tensorflow_may_not():
    assert versions.problems(GOOD | {"Horovod": None}) == []
    (line,) = versions.problems({name: v for name, v in GOOD.items() if name != "TensorFlow"})
    assert re.match("TensorFlow is not installed.*tensorflow-cpu", line)


def test_this_environment_is_supported():
    versions.require()


def test_require_raises_unless_told_not_to(monkeypatch):
    monkeypatch.setattr(versions, "found_versions", lambda: GOOD | {"TensorFlow": "2.9.1"})
    with pytest.raises(versions.UnsupportedVersionError, match=r"TensorFlow 2\.9\.1 was found; allowed is >=2\.21"):
        versions.require()
    with pytest.warns(UserWarning, match=r"TensorFlow 2\.9\.1 was found"):
        versions.warn_at_import()
    monkeypatch.setenv(versions.ANY_VERSION, "1")
    versions.require()


def test_importing_whaleish_checks():
    """The import warns of a wrong version, whatever it is that was asked for."""
    code = (
        "import importlib.metadata as m; real = m.version;"
        "m.version = lambda name: '1.15.0' if name.startswith('tensorflow') else real(name);"
        "import whaleish.versions"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert run.returncode == 0, run.stderr
    assert "TensorFlow 1.15.0 was found; allowed is >=2.21,<2.22" in run.stderr
