"""The programs in docs/pipelines.md that need no TensorFlow print what stands below them."""

import contextlib
import io
import pathlib
import re

import pytest

PAGE = (pathlib.Path(__file__).parents[2] / "docs" / "pipelines.md").read_text(encoding="utf-8")
PAIRS = re.findall(r"^```python\n(.*?)^```\n\n^```\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_every_program_has_its_output() -> None:
    assert len(PAIRS) == PAGE.count("```python") == 4


@pytest.mark.parametrize(("program", "shown"), PAIRS[1:], ids=["schedules", "actors", "check"])
def test_the_programs_on_the_page(program: str, shown: str) -> None:
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(program, {})
    assert printed.getvalue() == shown
