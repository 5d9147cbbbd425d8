"""The programs of docs/from-horovod.md run on two ranks as they stand there."""

from __future__ import annotations

import re

import pytest

from tests.cluster.harness import run_script
from tests.test_readme import ROOT, blocks

PAGE = ROOT / "docs" / "from-horovod.md"


@pytest.mark.ranks
@pytest.mark.parametrize("number", [0, 1])
def test_trains_on_two_ranks(number: int, ranks) -> None:
    program = blocks(PAGE, "python")[number]
    result = run_script(2, program, timeout=150)
    assert result.status == 0, result.output
    found = [float(value) for value in re.findall(r"accuracy (0\.\d+)", result.output)]
    assert len(found) == 2, result.output
    assert found[0] == found[1] > 0.5
