"""The volumes that plans are made with are what crosses the links."""

import json
import sys

import pytest

from tests.boxing.links import DIFFERENT, MOVES, SHAPE, WIDTH
from tests.cluster.harness import rank_environment
from tools.netlab import Network, run_ranks
from whaleish.boxing.route import route_volume
from whaleish.sbp import parse_layout


@pytest.mark.netlab
@pytest.mark.usefixtures("network_tools")
def test_bytes_on_the_links() -> None:
    """16 MB between four hosts, over Gloo: what all sent together, within 2%; of rows by id the different ones."""
    with Network(4, "none") as net:
        result = run_ranks(net, [sys.executable, "-m", "tests.boxing.links"], env=rank_environment(), timeout=200)
    assert result.status == 0, result.outputs
    lines = [line for output in result.outputs for line in output.splitlines() if line.startswith("SENT ")]
    by_rank = [json.loads(line.removeprefix("SENT ")) for line in lines]
    assert len(by_rank) == 4
    wrong = []
    merged = sum(counted.pop() for counted in by_rank)
    different = 4 * DIFFERENT * (4 * WIDTH + 8)
    print(f"rows merged by id: {merged / (3 * different):.4f} of {3 * different} bytes")
    assert merged == pytest.approx(3 * different, rel=0.05), "a row and its id go to three hosts, repeated ones once"
    for (mesh, source, target), *counted in zip(MOVES, *by_rank, strict=True):
        promised = route_volume(mesh, parse_layout(source), parse_layout(target), SHAPE, 4.0 * SHAPE[0] * SHAPE[1])
        print(f"{mesh.text()} {source} -> {target}: {sum(counted) / promised:.4f} of {promised:.0f} bytes")
        if sum(counted) != pytest.approx(promised, rel=0.02):
            wrong.append(f"{mesh.text()} {source} -> {target}: sent {sum(counted):.0f}, promised {promised:.0f}")
    assert not wrong, "\n".join(wrong)
