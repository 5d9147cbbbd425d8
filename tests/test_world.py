"""`wh.init()`: what it sets up, and what it refuses. Each case in a process of its own: TensorFlow starts only once."""

import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[1]


def run(code: str, **environment: str) -> str:
    """Runs Python code in a fresh process, and gives what it printed."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("HOROVOD_", "OMPI_"))}
    done = subprocess.run(
        [sys.executable, "-c", "import tensorflow as tf\nfrom whaleish import world\n" + code],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=ROOT,
        env=clean | {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"} | environment,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def error(call: str) -> str:
    """Code that prints the error of a call."""
    return f"try: {call}\nexcept (RuntimeError, ValueError) as error: print(type(error).__name__, error)\n"


def test_virtual_devices_ranks_and_idempotence():
    out = run(
        error("world.world()")
        + "world.init(virtual_devices=3)\nworld.init(virtual_devices=3)\n"
        + error("world.init()")
        + "w = world.world()\nprint(w.devices, w.size, w.rank, w.distributed)\n"
        + "print(world.rank(), world.size(), world.is_chief(), len(tf.config.list_logical_devices('CPU')))\n"
        + "import sys; print('horovod' in sys.modules)"
    )
    missing, again, devices, numbers, horovod = out.splitlines()
    assert "call wh.init() first" in missing
    assert again.startswith("RuntimeError wh.init() after wh.init(virtual_devices=3)")
    assert devices == "('/device:CPU:0', '/device:CPU:1', '/device:CPU:2') 3 0 False"
    assert numbers == "0 3 True 3"
    assert horovod == "False"


def test_after_tensorflow_has_started():
    out = run("tf.zeros([])\n" + error("world.init(virtual_devices=2)") + "world.init()\nprint(world.world().devices)")
    refused, devices = out.splitlines()
    assert "already started, with 1 CPU device" in refused
    assert "before any TensorFlow op" in refused
    assert devices == "('/device:CPU:0',)"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("devices=3", "there are 2: /device:CPU:0, /device:CPU:1"),
        ("devices=['CPU:7']", "'CPU:7'"),
        ("devices=[1, 1]", "asked for twice"),
        ("devices=[]", "no device"),
        ("virtual_devices=0", "at least one"),
    ],
)
def test_devices_that_are_not_there(arguments, said):
    two = arguments if "virtual" in arguments else f"virtual_devices=2, {arguments}"
    out = run(error(f"world.init({two})") + "world.init(virtual_devices=2, devices=[1])\nprint(world.world().devices)")
    first, *_, last = out.splitlines()
    assert said in first
    assert last == "('/device:CPU:1',)"


def test_under_horovodrun_without_horovod():
    missing = "import sys; sys.modules['horovod'] = None\n"
    out = run(missing + error("world.init()"), HOROVOD_RANK="0", HOROVOD_SIZE="2")
    assert "whaleish install-horovod" in out
    assert len(out.splitlines()) == 1
    out = run(error("world.init(virtual_devices=2)"), OMPI_COMM_WORLD_RANK="0", OMPI_COMM_WORLD_SIZE="2")
    assert "each process has one device" in out
