#!/usr/bin/env python3
"""Runs the ranks of a Horovod program on emulated hosts joined by rate-limited links.

    tools/netlab.py --hosts 4 --per-host 1 --rate 1gbit -- python train.py ARGS...

Each host is a network namespace with one interface, eth0, on a common bridge:

    host 0 [eth0 10.77.n.1]--veth--+
    host 1 [eth0 10.77.n.2]--veth--+-- bridge 10.77.n.254 (rendezvous server, in this process)
    ...                            +

`--rate` shapes both directions of each link (`tc tbf`; `none` leaves them free). Ranks rendezvous over Gloo, as under
horovodrun; RANK, WORLD_SIZE, MASTER_ADDR... are set too, so that programs launched the PyTorch way run on the same
links. The bytes that each host sent and received are printed at the end. Needs root, iproute2 and Horovod; removes
what it made.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any

SUBNETS = [f"10.77.{n}" for n in range(250)]
POLL_S = 0.05


class NetlabError(Exception):
    """Networks cannot be emulated here; says what to do."""


@dataclass(frozen=True)
class Traffic:
    """Bytes through one host's link."""

    sent: int
    received: int


@dataclass(frozen=True)
class RunResult:
    """How a program's ranks ended: the first non-zero status (0: all went well), output by rank, traffic by host."""

    status: int
    outputs: tuple[str, ...]
    traffic: tuple[Traffic, ...]
    seconds: float
    timed_out: bool = False


class Network:
    """Hosts that are network namespaces, wired to one bridge; exists inside a `with`.

        with Network(4, "1gbit") as net:
            net.hosts, net.address(0), net.traffic(0)

    Args:
        count: number of hosts.
        rate: of each host's link and direction, as `tc` writes it ("200mbit", "1gbit"); "none" does not limit it.
        burst: bytes that may pass at once, as `tc` writes it.
    """

    def __init__(self, count: int, rate: str, burst: str = "256kb"):
        if not 1 <= count <= 250:
            raise NetlabError(f"{count} hosts were asked for; allowed are 1 to 250")
        self.count, self.rate, self.burst = count, rate, burst
        tag = "nl" + uuid.uuid4().hex[:6]  # names of interfaces have at most 15 characters
        self.bridge, self.hosts = tag + "b", [f"{tag}{index}" for index in range(count)]
        self.prefix = ""

    def address(self, host: int) -> str:
        return f"{self.prefix}.{host + 1}"

    @property
    def gateway(self) -> str:
        """The address of this process on the bridge."""
        return f"{self.prefix}.254"

    def __enter__(self) -> Network:
        check_tools()
        self.prefix = _free_subnet()
        try:
            _run("ip", "link", "add", self.bridge, "type", "bridge")
            _run("ip", "addr", "add", self.gateway + "/24", "dev", self.bridge)
            _run("ip", "link", "set", self.bridge, "up")
            for index, host in enumerate(self.hosts):
                self._add_host(index, host)
        except BaseException:
            self.__exit__()
            raise
        return self

    def _add_host(self, index: int, host: str) -> None:
        # Horovod's process sets listen on the address that the host's own name resolves to.
        names = pathlib.Path("/etc/netns", host, "hosts")
        names.parent.mkdir(parents=True, exist_ok=True)
        names.write_text(f"127.0.0.1 localhost\n{self.address(index)} {socket.gethostname()}\n", encoding="utf-8")
        outside = host + "v"
        inside = ("ip", "netns", "exec", host)
        _run("ip", "netns", "add", host)
        _run("ip", "link", "add", outside, "type", "veth", "peer", "name", "eth0", "netns", host)
        _run("ip", "link", "set", outside, "master", self.bridge)
        _run("ip", "link", "set", outside, "up")
        _run(*inside, "ip", "addr", "add", self.address(index) + "/24", "dev", "eth0")
        _run(*inside, "ip", "link", "set", "eth0", "up")
        _run(*inside, "ip", "link", "set", "lo", "up")
        if self.rate != "none":
            shape = ("root", "tbf", "rate", self.rate, "burst", self.burst, "latency", "200ms")
            _run(*inside, "tc", "qdisc", "add", "dev", "eth0", *shape)
            _run("tc", "qdisc", "add", "dev", outside, *shape)

    def traffic(self, host: int) -> Traffic:
        """The bytes through a host's link since the host was made, headers included."""
        folder = "/sys/class/net/eth0/statistics/"
        out = _run("ip", "netns", "exec", self.hosts[host], "cat", folder + "tx_bytes", folder + "rx_bytes")
        sent, received = out.split()
        return Traffic(int(sent), int(received))

    def __exit__(self, *_: object) -> None:
        for host in self.hosts:
            _run("ip", "link", "del", host + "v", check=False)  # the kernel is slow to do it with the namespace
            _run("ip", "netns", "del", host, check=False)
            shutil.rmtree(f"/etc/netns/{host}", ignore_errors=True)
        _run("ip", "link", "del", self.bridge, check=False)


def check_tools() -> None:
    """Raise a NetlabError unless networks can be emulated here."""
    missing = [name for name in ("ip", "tc") if shutil.which(name) is None]
    if missing:
        raise NetlabError(f"{' and '.join(missing)} not found; on Debian: apt-get install iproute2")
    if os.geteuid() != 0:
        raise NetlabError("network namespaces are made by root only; run this as root, or with sudo -E")


def run_ranks(
    net: Network,
    command: Sequence[str],
    *,
    per_host: int = 1,
    env: Mapping[str, str] | None = None,
    timeout: float | None = None,
    capture: bool = True,
) -> RunResult:
    """Run a program on every host of a network, as Horovod over Gloo, and wait for it.

    Args:
        net: an entered network.
        command: the program and its arguments, the same on all ranks.
        per_host: ranks on each host; ranks 0 to per_host - 1 are on host 0.
        env: what the ranks inherit; None is this process's environment.
        timeout: seconds after which all ranks are killed.
        capture: keep what the ranks print (stderr included) in the result, rather than letting it through.
    """
    from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
    from horovod.runner.http.http_server import RendezvousServer

    text = ",".join(f"{net.address(index)}:{per_host}" for index in range(net.count))
    slots = get_host_assignments(parse_hosts(text), net.count * per_host)
    server = RendezvousServer(0)
    port = server.start()
    server.init(slots)
    start = time.monotonic()
    before = [net.traffic(host) for host in range(net.count)]
    processes: list[subprocess.Popen[bytes]] = []
    logs: list[IO[bytes] | None] = []
    try:
        for slot in slots:
            host = net.hosts[int(slot.hostname.rsplit(".", 1)[1]) - 1]
            log = tempfile.TemporaryFile() if capture else None  # noqa: SIM115 - read and closed below
            logs.append(log)
            processes.append(
                subprocess.Popen(
                    ["ip", "netns", "exec", host, *command],
                    env=rank_environment(slot, net, port, os.environ if env is None else env),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            )
        status, timed_out = _wait(processes, timeout)
    finally:
        for process in processes:
            _kill(process, signal.SIGKILL)
            process.wait()
        server.stop()
    outputs = tuple(_read(log) for log in logs)
    after = [net.traffic(host) for host in range(net.count)]
    moved = tuple(Traffic(b.sent - a.sent, b.received - a.received) for a, b in zip(before, after, strict=True))
    return RunResult(status, outputs, moved, time.monotonic() - start, timed_out)


def rank_environment(slot: Any, net: Network, port: int, env: Mapping[str, str]) -> dict[str, str]:
    """A rank's environment: Horovod's names for its place, and those that other launchers set."""
    horovod = {
        "HOSTNAME": slot.hostname,
        "RANK": slot.rank,
        "SIZE": slot.size,
        "LOCAL_RANK": slot.local_rank,
        "LOCAL_SIZE": slot.local_size,
        "CROSS_RANK": slot.cross_rank,
        "CROSS_SIZE": slot.cross_size,
        "GLOO_RENDEZVOUS_ADDR": net.gateway,
        "GLOO_RENDEZVOUS_PORT": port,
        "GLOO_IFACE": "eth0",
        "CONTROLLER": "gloo",
        "CPU_OPERATIONS": "gloo",
    }
    others = {
        "RANK": slot.rank,
        "WORLD_SIZE": slot.size,
        "LOCAL_RANK": slot.local_rank,
        "MASTER_ADDR": net.address(0),
        "MASTER_PORT": 29511,
        "GLOO_SOCKET_IFNAME": "eth0",
        "PYTHONUNBUFFERED": 1,
    }
    named = {f"HOROVOD_{name}": value for name, value in horovod.items()} | others
    return dict(env) | {name: str(value) for name, value in named.items()}


def _wait(processes: Sequence[subprocess.Popen[bytes]], timeout: float | None) -> tuple[int, bool]:
    """(first non-zero exit status, whether time ran out). When one rank fails or time runs out the others are ended."""
    deadline = None if timeout is None else time.monotonic() + timeout
    live, status = set(processes), 0
    while live:
        time.sleep(POLL_S)
        for process in [p for p in live if p.poll() is not None]:
            live.discard(process)
            if process.returncode and not status:
                code = process.returncode
                status = code if code > 0 else 128 - code
                for other in live:
                    _kill(other, signal.SIGTERM)
                deadline = min(deadline or time.monotonic() + 5, time.monotonic() + 5)
        if deadline is not None and time.monotonic() > deadline:
            return status or 124, not status
    return status, False


def _kill(process: subprocess.Popen[bytes], number: int) -> None:
    # Each rank leads a process group of its own, so that what it started goes with it.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def _read(log: IO[bytes] | None) -> str:
    if log is None:
        return ""
    with log:
        log.seek(0)
        return log.read().decode(errors="replace")


def _free_subnet() -> str:
    """A /24 that no interface here has: networks of several processes may exist at once."""
    used = _run("ip", "-o", "-4", "addr", "show")
    start = os.getpid() % len(SUBNETS)
    for subnet in SUBNETS[start:] + SUBNETS[:start]:
        if f" {subnet}." not in used:
            return subnet
    raise NetlabError("all of 10.77.0.0/16 is in use; remove old namespaces: ip netns list, ip netns del NAME")


def _run(*command: str, check: bool = True) -> str:
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if check and run.returncode:
        raise NetlabError(f"`{' '.join(command)}` failed: {run.stderr.strip()}")
    return run.stdout


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--per-host", type=int, default=1, help="ranks on each host")
    parser.add_argument("--rate", default="1gbit", help="of each host's link, as tc writes it; none: unlimited")
    parser.add_argument("--timeout", type=float, help="seconds after which the ranks are killed")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args(argv)
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not command:
        parser.error("no program was given; for instance: netlab.py --hosts 2 -- python train.py")
    # So that being ended still leaves through the `with`, which removes the network.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        with Network(options.hosts, options.rate) as net:
            result = run_ranks(net, command, per_host=options.per_host, timeout=options.timeout, capture=False)
    except NetlabError as error:
        print(f"netlab: {error}", file=sys.stderr)
        return 1
    for host, traffic in enumerate(result.traffic):
        sent, received = traffic.sent / 1e6, traffic.received / 1e6
        print(f"netlab host {host} tx {sent:.2f} MB rx {received:.2f} MB", flush=True)
    return result.status


if __name__ == "__main__":
    sys.exit(main())
