"""Scripts in processes of their own, for what a process can measure only once: its memory, or what it begins with."""

import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[1]


def run_fresh(script: str, *words: str, timeout: float = 240) -> str:
    """What a script prints that is given some words; fails with the end of what it complains of."""
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
    command = [sys.executable, "-c", script, *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, timeout=timeout)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout
