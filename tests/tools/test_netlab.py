"""Emulated networks: links have the rate asked for, bytes are counted, and nothing is left behind."""

import os
import pathlib
import subprocess
import sys

import pytest

from tests.cluster.harness import ROOT, rank_environment
from tools import netlab
from tools.netlab import NetlabError, Network, run_ranks

SEND_AND_RECEIVE = """
import os, socket, sys, time
rank, size = int(os.environ["RANK"]), int(sys.argv[1])
address = (os.environ["MASTER_ADDR"], 29600)
if rank == 0:
    with socket.create_server(address) as server:
        peer, _ = server.accept()
        start, got = time.monotonic(), 0
        while got < size:
            got += len(peer.recv(1 << 16))
        print(got / (time.monotonic() - start))
else:
    for _ in range(100):
        try:
            peer = socket.create_connection(address)
            break
        except ConnectionRefusedError:
            time.sleep(0.1)
    peer.sendall(bytes(size))
    peer.shutdown(socket.SHUT_WR)
"""

ALLREDUCE = """
import horovod.tensorflow as hvd, tensorflow as tf
hvd.init()
x = tf.fill([250_000], float(hvd.rank() + 1))
hvd.allreduce(x, op=hvd.Sum, name="warm")
pair = hvd.add_process_set([0, 1])
total = hvd.allreduce(x, op=hvd.Sum, name="x")
of_pair = hvd.allreduce(x, op=hvd.Sum, name="y", process_set=pair) if hvd.rank() < 2 else [3.0]
print("rank", hvd.rank(), "of", hvd.size(), "local", hvd.local_rank(), "sums", float(total[0]), float(of_pair[0]))
"""


def left_behind(net):
    names = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    links = subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=True).stdout
    folders = [str(path) for path in pathlib.Path("/etc/netns").glob("*")]
    return [name for name in [*net.hosts, net.bridge] if name in names or name in links or name in "".join(folders)]


@pytest.mark.netlab
@pytest.mark.usefixtures("network_tools")
class TestNetworks:
    def test_a_link_has_the_rate_asked_for_and_counts_bytes(self):
        size = 10_000_000
        with Network(2, "200mbit") as net:
            result = run_ranks(net, [sys.executable, "-c", SEND_AND_RECEIVE, str(size)], timeout=60)
        assert result.status == 0, result.outputs
        assert float(result.outputs[0]) * 8 == pytest.approx(200e6, rel=0.15)
        assert size <= result.traffic[1].sent <= 1.1 * size
        assert size <= result.traffic[0].received <= 1.1 * size
        assert left_behind(net) == []

    def test_horovod_runs_on_the_links_process_sets_too(self):
        with Network(3, "1gbit") as net:
            command = [sys.executable, "-c", ALLREDUCE]
            env = rank_environment()
            result = run_ranks(net, command, env=env, timeout=120)
        assert result.status == 0, result.outputs
        for rank, output in enumerate(result.outputs):
            assert f"rank {rank} of 3 local 0 sums 6.0 3.0" in output
        assert all(traffic.sent > 1_000_000 for traffic in result.traffic)

    def test_several_ranks_share_a_host(self):
        code = "import os; print(*(os.environ[f'HOROVOD_{name}RANK'] for name in ('', 'LOCAL_', 'CROSS_')))"
        with Network(2, "none") as net:
            result = run_ranks(net, [sys.executable, "-c", code], per_host=2, timeout=60)
        assert [output.split() for output in result.outputs] == [
            ["0", "0", "0"],
            ["1", "1", "0"],
            ["2", "0", "1"],
            ["3", "1", "1"],
        ]

    def test_a_failing_rank_ends_the_others(self):
        code = "import os, sys, time; sys.exit(3) if os.environ['RANK'] == '1' else time.sleep(600)"
        with Network(2, "none") as net:
            result = run_ranks(net, [sys.executable, "-c", code], timeout=60)
        assert (result.status, result.timed_out) == (3, False)
        assert result.seconds < 20

    def test_ranks_that_overstay_are_killed(self):
        with Network(1, "none") as net:
            result = run_ranks(net, [sys.executable, "-c", "import time; time.sleep(600)"], timeout=1)
        assert (result.status, result.timed_out) == (124, True)

    def test_a_network_that_cannot_be_made_leaves_nothing(self):
        net = Network(2, "much")
        with pytest.raises(NetlabError, match=r"tc qdisc add.*failed"):
            net.__enter__()
        assert left_behind(net) == []

    def test_two_networks_exist_at_once(self):
        with Network(1, "none") as one, Network(1, "none") as other:
            assert one.prefix != other.prefix

    def test_the_command_line_prints_the_bytes(self):
        command = [sys.executable, "tools/netlab.py", "--hosts", "1", "--rate", "none", "--", "echo", "hello"]
        run = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT, check=True)
        assert "hello" in run.stdout
        assert "netlab host 0 tx 0.00 MB" in run.stdout


def test_without_root_it_says_so(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(netlab.shutil, "which", lambda name: "/sbin/" + name)
    with pytest.raises(NetlabError, match="root"):
        netlab.check_tools()


def test_without_iproute2_it_says_so(monkeypatch):
    monkeypatch.setattr(netlab.shutil, "which", lambda name: None)
    with pytest.raises(NetlabError, match="apt-get install iproute2"):
        netlab.check_tools()


def test_too_many_hosts_are_refused():
    with pytest.raises(NetlabError, match="allowed are 1 to 250"):
        Network(251, "none")
