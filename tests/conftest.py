"""What all tests share: sampled or whole products of cases, four virtual devices, real ranks, emulated networks."""

import os
import shutil
import sys
from collections.abc import Callable, Iterator

import pytest

from tests import products
from tests.cluster.harness import RankPool

VIRTUAL_DEVICES = 4
# Where this is set nothing may be skipped: a tool that is missing is a failure.
STRICT = os.environ.get("CI", "").lower() in ("1", "true")


def pytest_addoption(parser: pytest.Parser) -> None:
    help_text = "run the large products of cases in full, where by default they are sampled pairwise"
    parser.addoption("--all-cases", action="store_true", help=help_text)


def pytest_configure(config: pytest.Config) -> None:
    # Test modules build their cases when they are imported, which is after this.
    if config.getoption("--all-cases"):
        os.environ[products.ALL] = "1"
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "ranks" in getattr(item, "fixturenames", ()):
            item.add_marker("ranks")


def pytest_collection_finish(session: pytest.Session) -> None:
    # TensorFlow makes its devices once. Tests that never import it do not pay for it.
    if "tensorflow" in sys.modules and not session.config.option.collectonly:
        make_virtual_devices()


def make_virtual_devices() -> None:
    """Give this process four CPU devices; fails if a test module made TensorFlow start while it was imported."""
    import whaleish

    if hasattr(whaleish, "init"):
        whaleish.init(virtual_devices=VIRTUAL_DEVICES)
        return
    import tensorflow as tf

    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * VIRTUAL_DEVICES)


@pytest.fixture(scope="session")
def _pools() -> Iterator[dict[int, RankPool]]:
    pools: dict[int, RankPool] = {}
    yield pools
    for pool in pools.values():
        pool.kill()


@pytest.fixture
def pools(_pools: dict[int, RankPool]) -> Callable[[int], RankPool]:
    """Real ranks, of several numbers in one test: `pools(4)`."""
    return lambda size: _pools.setdefault(size, RankPool(size))


@pytest.fixture
def ranks(request: pytest.FixtureRequest, _pools: dict[int, RankPool]) -> RankPool:
    """Real ranks, two unless parametrized: `@pytest.mark.parametrize("ranks", [2, 4], indirect=True)`."""
    size = getattr(request, "param", 2)
    return _pools.setdefault(size, RankPool(size))


@pytest.fixture
def world_of(request: pytest.FixtureRequest) -> Iterator[int]:
    """The world of so many of the four virtual devices: `parametrize("world_of", [2, 3], indirect=True)`."""
    import whaleish
    from whaleish import world

    world._reset()
    whaleish.init(devices=request.param)
    yield request.param
    world._reset()
    whaleish.init(virtual_devices=VIRTUAL_DEVICES)


@pytest.fixture
def network_tools() -> None:
    """Skips where networks cannot be emulated; in a strict run that is a failure."""
    missing = [name for name in ("ip", "tc") if shutil.which(name) is None]
    reason = f"emulated networks need root and iproute2 (apt-get install iproute2); missing: {', '.join(missing)}"
    if os.geteuid() != 0 or missing:
        (pytest.fail if STRICT else pytest.skip)(reason if missing else "emulated networks need root")
