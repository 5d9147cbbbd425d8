"""The versions whaleish works with, and the check that importing it makes."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import warnings
from collections.abc import Mapping
from dataclasses import dataclass

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

ANY_VERSION = "WHALEISH_ANY_VERSION"


class UnsupportedVersionError(ImportError):
    """Something whaleish stands on is missing, or is a version that it does not work with."""


@dataclass(frozen=True)
class Supported:
    """One row of the table: `distributions` are the names it may be installed under, the first found counts."""

    name: str
    allowed: str
    tested: str
    distributions: tuple[str, ...]
    install: str
    needed_for: str = ""  # empty: always needed


SUPPORTED = (
    Supported("Python", ">=3.11,<3.14", "3.11", (), "make an environment with Python 3.11"),
    Supported(
        "TensorFlow",
        ">=2.21,<2.22",
        "2.21.0",
        ("tensorflow", "tensorflow-cpu"),
        "pip install 'tensorflow-cpu>=2.21,<2.22', or on GPUs 'tensorflow[and-cuda]>=2.21,<2.22'",
    ),
    Supported("Keras", ">=3.15,<3.16", "3.15.1", ("keras",), "pip install 'keras>=3.15,<3.16'"),
    Supported("NumPy", ">=2.0,<3", "2.4.6", ("numpy",), "pip install 'numpy>=2.0,<3'"),
    Supported("protobuf", ">=6.31.1,<8", "7.36.2", ("protobuf",), "pip install 'protobuf>=6.31.1,<8'"),
    Supported("Horovod", "==0.28.1", "0.28.1", ("horovod",), "whaleish install-horovod", "several processes"),
)


def problems(found: Mapping[str, str | None], table: tuple[Supported, ...] = SUPPORTED) -> list[str]:
    """What is wrong with the versions found, one line each: what was found, what is allowed, what to do.

    Args:
        found: name in the table to version; None or no entry means that it is not installed.
        table: the versions allowed.
    """
    lines = []
    for row in table:
        version = found.get(row.name)
        if version is None and not row.needed_for:
            lines.append(f"{row.name} is not installed; whaleish needs {row.name} {row.allowed}. To do: {row.install}")
        elif version is not None and not _allows(row.allowed, version):
            lines.append(f"{row.name} {version} was found; allowed is {row.allowed}. To do: {row.install}")
    return lines


def _allows(allowed: str, version: str) -> bool:
    try:
        return SpecifierSet(allowed).contains(Version(version), prereleases=True)
    except InvalidVersion:
        return False


def found_versions(table: tuple[Supported, ...] = SUPPORTED) -> dict[str, str | None]:
    """The versions installed here, read from package metadata: nothing is imported."""
    found: dict[str, str | None] = {}
    for row in table:
        found[row.name] = platform.python_version() if row.name == "Python" else _installed(row.distributions)
    return found


def _installed(distributions: tuple[str, ...]) -> str | None:
    for name in distributions:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def warn_at_import() -> None:
    """Warn of versions that are not supported; run by `import whaleish`.

    It only warns, so that `whaleish doctor` and `whaleish install-horovod` can still be asked what to do;
    `require` is what stops a program.
    """
    found = {name: version for name, version in found_versions().items() if version is not None}
    wrong = [line for line in problems(found) if "not installed" not in line]
    for line in wrong:
        warnings.warn(f"whaleish: {line}", stacklevel=3)


def require() -> None:
    """Raise unless everything that is always needed is here in an allowed version; run before TensorFlow is imported.

    Raises:
        UnsupportedVersionError: with one line per problem, unless the environment sets WHALEISH_ANY_VERSION=1.
    """
    wrong = problems(found_versions())
    if wrong and os.environ.get(ANY_VERSION) != "1":
        lines = "\n".join(f"  - {line}" for line in wrong)
        raise UnsupportedVersionError(
            f"whaleish cannot run with what is installed here:\n{lines}\n"
            f"`whaleish doctor` checks the rest. To try it all the same, set {ANY_VERSION}=1."
        )


def as_markdown(table: tuple[Supported, ...] = SUPPORTED) -> str:
    """The table as the README shows it."""
    lines = ["| | supported | tested with | needed for |", "| --- | --- | --- | --- |"]
    for row in table:
        lines.append(f"| {row.name} | `{row.allowed}` | {row.tested} | {row.needed_for or 'everything'} |")
    return "\n".join(lines)
