"""Runs the 2-rank proof on an engine, within a time limit."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass

LIMIT_S = 180.0


@dataclass(frozen=True)
class Proof:
    """What came of it: `text` is one line, `output` everything that the ranks printed."""

    engine: str
    works: bool
    text: str
    output: str


def prove(engine: str, limit_s: float = LIMIT_S) -> Proof:
    """Sum numbers over two real ranks on this machine; on an engine, "mpi" or "gloo"."""
    # A process of its own, so that what it leaves can be ended without touching this one's children.
    command = [sys.executable, "-m", "whaleish.cli", "run", "-np", "2", "--engine", engine]
    command += [sys.executable, "-m", "whaleish.launch.proof"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True
    )
    try:
        output, _ = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        process.terminate()  # which ends the ranks too
        output, _ = process.communicate()
        return Proof(engine, False, f"2 ranks over {engine} did not finish within {limit_s:.0f} s", output)
    except BaseException:
        process.terminate()
        process.wait()
        raise
    return Proof(engine, *judge(engine, process.returncode, output), output)


def judge(engine: str, status: int, output: str) -> tuple[bool, str]:
    """Whether a run of the proof went well, and one line that says how."""
    # mpirun's tags may stand behind the text as well as before it.
    match = re.search(r"whaleish-proof: (2 ranks agree[^\[\n]*)", output)
    if status == 0 and match:
        return True, f"{engine}: {match.group(1).strip()}"
    errors = [line for line in output.splitlines() if re.search(r"error|Error|refused|denied|cannot", line)]
    hint = f"; {errors[-1].strip()[:300]}" if errors else ""
    return False, f"2 ranks over {engine} ended with status {status}{hint}"
