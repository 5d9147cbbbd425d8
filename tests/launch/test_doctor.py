"""`whaleish doctor`: each finding has its level and remedy, on described machines, and this machine passes."""

from dataclasses import replace

import pytest

from tests.launch.test_engine import FULL, MACHINE, OPEN_MPI_5
from whaleish import cli, versions
from whaleish.launch import doctor, proven
from whaleish.launch.proven import Proof

GOOD = {row.name: row.tested for row in versions.SUPPORTED}


def levels(findings):
    return [(finding.level, finding.subject) for finding in findings]


def test_good_versions():
    assert {finding.level for finding in doctor.judge_versions(GOOD)} == {"ok"}


def test_bad_and_missing_versions():
    findings = {
        f.subject: f for f in doctor.judge_versions(GOOD | {"Keras": "2.15", "TensorFlow": None, "Horovod": None})
    }
    assert (findings["Keras"].level, findings["TensorFlow"].level, findings["Horovod"].level) == (
        "fail",
        "fail",
        "note",
    )
    assert "2.15; whaleish needs >=3.15" in findings["Keras"].text
    assert findings["Horovod"].remedy == "whaleish install-horovod"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, [("ok", "Horovod's build"), ("ok", "MPI")]),
        ({"horovod": None}, []),
        ({"horovod": replace(FULL, tensorflow=None)}, [("fail", "Horovod's build")]),
        ({"horovod": replace(FULL, tensorflow="2.20.0")}, [("fail", "Horovod's build")]),
        ({"horovod": replace(FULL, mpi=False, gloo=False)}, [("fail", "Horovod's build")]),
        ({"horovod": replace(FULL, mpi=False)}, [("ok", "Horovod's build"), ("note", "Horovod's build")]),
        ({"mpi": None}, [("ok", "Horovod's build"), ("note", "MPI")]),
        ({"mpi": OPEN_MPI_5}, [("ok", "Horovod's build"), ("note", "MPI")]),
    ],
)
def test_horovods_build(change, expected):
    findings = doctor.judge_horovod(replace(MACHINE, **change), "2.21.0")
    assert levels(findings) == expected
    assert all(finding.remedy for finding in findings if finding.level != "ok")


def test_traps_with_their_remedies():
    loopback, cores = doctor.judge_traps(MACHINE, ranks=8)
    assert (loopback.level, cores.level) == ("note", "note")
    assert "ip link set lo mtu 16384" in loopback.remedy
    assert 'horovodrun -np 8 --mpi --mpi-args="--oversubscribe --mca mpi_yield_when_idle 1"' in cores.remedy


def test_no_traps():
    assert levels(doctor.judge_traps(replace(MACHINE, loopback_mtu=1500), ranks=4)) == [("ok", "cores")]


def test_devices():
    assert doctor.judge_devices(["/physical_device:CPU:0"], "")[0].text.startswith("no GPU")
    assert doctor.judge_devices(["/physical_device:CPU:0", "/physical_device:GPU:0"], "")[0].text == "1 GPUs"
    assert doctor.judge_devices(None, "ImportError: libx")[0].level == "fail"


def test_proofs():
    assert doctor.judge_proof(Proof("mpi", True, "mpi: 2 ranks agree", "")).level == "ok"
    failed = doctor.judge_proof(Proof("gloo", False, "did not finish", ""))
    assert failed.level == "fail"
    assert "whaleish run -np 2 --engine gloo" in failed.remedy


@pytest.mark.parametrize(
    ("status", "output", "works", "text"),
    [
        (
            0,
            "[1,0]<stdout>:whaleish-proof: 2 ranks agree; 4 bytes 1.0 ms[1,0]<stdout>:\n",
            True,
            "agree; 4 bytes 1.0 ms",
        ),
        (0, "nothing", False, "ended with status 0"),
        (1, "x\n[0]<stderr>:ImportError: libmpi.so.40\ny", False, "status 1; [0]<stderr>:ImportError: libmpi.so.40"),
    ],
)
def test_judging_the_output_of_a_proof(status, output, works, text):
    verdict = proven.judge("mpi", status, output)
    assert verdict[0] == works
    assert text in verdict[1]


def test_engines_to_prove():
    assert doctor.usable_engines(MACHINE) == ["mpi", "gloo"]
    assert doctor.usable_engines(replace(MACHINE, mpi=None)) == ["gloo"]
    assert doctor.usable_engines(replace(MACHINE, horovod=None)) == []


def test_a_proof_that_hangs_ends_at_its_limit():
    proof = proven.prove("mpi", limit_s=1.0)
    assert not proof.works
    assert "did not finish within 1 s" in proof.text


def test_this_machine_passes(capsys):
    assert cli.main(["doctor"]) == 0
    output = capsys.readouterr().out
    assert "ok    2 ranks: mpi: 2 ranks agree" in output
    assert "ok    2 ranks: gloo: 2 ranks agree" in output
    assert "FAIL" not in output


def test_a_failure_is_the_exit_status(monkeypatch, capsys):
    monkeypatch.setattr(versions, "found_versions", lambda: GOOD | {"Keras": "2.0"})
    monkeypatch.setattr(doctor, "_devices", lambda: ([], ""))
    monkeypatch.setattr(doctor, "usable_engines", lambda here: [])
    assert cli.main(["doctor"]) == 1
    assert "FAIL  Keras: 2.0; whaleish needs >=3.15,<3.16\n      to do: pip install" in capsys.readouterr().out
