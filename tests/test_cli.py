"""The command line starts at once, and works where TensorFlow does not."""

import subprocess
import sys

import pytest

from tests.cluster.harness import ROOT


def test_the_command_line_does_not_import_tensorflow():
    code = "import sys, whaleish.cli; whaleish.cli.parser(); sys.exit('tensorflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=60).returncode == 0


@pytest.mark.parametrize("command", ["run", "doctor", "install-horovod"])
def test_every_command_explains_itself(command):
    run = subprocess.run(
        [sys.executable, "-m", "whaleish.cli", command, "--help"], capture_output=True, text=True, cwd=ROOT
    )
    assert run.returncode == 0
    assert run.stdout.startswith("usage: whaleish " + command)
