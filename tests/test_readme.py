"""The programs in the README and in pages of docs/ run as they stand there, and print what stands below them."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[1]
README = ROOT / "README.md"
LAYOUTS = ROOT / "docs" / "layouts.md"
PIPELINES = ROOT / "docs" / "pipelines.md"
KERAS = ROOT / "docs" / "keras.md"
MEMORY = ROOT / "docs" / "memory.md"
CALL = "(inputs[:64], labels[:64])"
SAMPLES = f"print(train_step.explain{CALL}, train_step.plan_for{CALL}, sep='\\n')"


def blocks(page: pathlib.Path, language: str = "") -> list[str]:
    """The fenced blocks of a language on a page; those of no language by default."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return [text for name, text in found if name == language]


def output_of(program: str, name: str, folder: pathlib.Path) -> list[str]:
    """What a program prints, run from a file of this name."""
    (folder / name).write_text(program, encoding="utf-8")
    env = os.environ | {"PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "2"}
    run = subprocess.run([sys.executable, name], cwd=folder, env=env, capture_output=True, text=True, timeout=200)
    assert run.returncode == 0, run.stderr
    return run.stdout.splitlines()


def test_the_readme_program_runs_and_shows_what_it_says(tmp_path: pathlib.Path) -> None:
    (program,) = blocks(README, "python")
    assert program.count("wh.init()") == 1
    devices = program.replace("wh.init()", "wh.init(virtual_devices=4)")
    printed = output_of(f"{devices}\n{SAMPLES}\n", "train.py", tmp_path)
    _, losses, *samples = (block for block in blocks(README) if "/path/to" not in block)
    for shown, line in zip(losses.splitlines(), printed, strict=False):
        (label, value), (own_label, own) = shown.rsplit(" ", 1), line.rsplit(" ", 1)
        assert label == own_label
        # Processors round differently, and training makes more of it.
        assert float(own) == pytest.approx(float(value), abs=0.05)
    assert samples
    for line in (line for block in samples for line in block.splitlines() if line != "..."):
        assert line in printed, "the README shows a line that is not printed any more"


def test_the_worked_example_of_the_layouts_prints_its_plan(tmp_path: pathlib.Path) -> None:
    (program,) = blocks(LAYOUTS, "python")
    (shown,) = blocks(LAYOUTS)
    assert output_of(program, "example.py", tmp_path) == shown.splitlines()


def test_the_step_in_stages_explains_itself_and_learns(tmp_path: pathlib.Path) -> None:
    program, shown = blocks(PIPELINES, "python")[0], blocks(PIPELINES)[0]
    assert output_of(program, "example.py", tmp_path) == shown.splitlines()
    assert (tmp_path / "step.json").stat().st_size > 0


def test_the_deferred_model_trains_in_parts(tmp_path: pathlib.Path) -> None:
    (program,) = (block for block in blocks(MEMORY, "python") if "wh.deferred()" in block)
    (shown,) = (block for block in blocks(MEMORY) if "deferred:" in block)
    assert output_of(program, "example.py", tmp_path) == shown.splitlines()


def test_the_keras_model_trains(tmp_path: pathlib.Path) -> None:
    (program,), (shown,) = blocks(KERAS, "python"), blocks(KERAS)
    assert output_of(program, "example.py", tmp_path) == shown.splitlines()


@pytest.mark.parametrize("page", [README, ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))], ids=str)
def test_links_lead_somewhere(page: pathlib.Path) -> None:
    for target, anchor in re.findall(r"\]\((?!http)([^)#]*)(?:#([^)]*))?\)", page.read_text(encoding="utf-8")):
        linked = (page.parent / target) if target else page
        assert linked.exists(), f"{page.name} links to {target}"
        titles = re.findall(r"^#+ (.*)$", linked.read_text(encoding="utf-8"), re.MULTILINE) if anchor else []
        known = {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles}
        assert not anchor or anchor in known, f"{page.name} links to #{anchor} of {linked.name}"


def test_what_decides_does_without_tensorflow() -> None:
    """As docs/architecture.md says, under "What may import what"."""
    pure = "graph sbp mesh cluster scopes versions cli planner passes.budget chunks report.explain report.shares rules "
    pure += "report.stages planner.moves rewrite.expand launch.run launch.doctor launch.install schedule runtime"
    pure += " report.again report.memory report.freeing planner.liveness planner.estimate tables"
    imports = "; ".join(f"import whaleish.{name}" for name in pure.split())
    code = f"import sys; sys.modules['tensorflow'] = sys.modules['keras'] = None; {imports}"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
