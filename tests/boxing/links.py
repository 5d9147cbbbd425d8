"""What boxings really send: run on every rank of an emulated network, prints the bytes that this host sent for each."""

from __future__ import annotations

import json
import pathlib
import time

import numpy as np
import tensorflow as tf

import whaleish as wh
from whaleish import tf_private, world
from whaleish.boxing.boxer import Boxing
from whaleish.boxing.horovod import HorovodBoxer
from whaleish.meeting import gather_rows
from whaleish.mesh import Axis, Mesh
from whaleish.process_sets import process_sets
from whaleish.sbp import Layout, parse_layout
from whaleish.writer import FunctionWriter

SHAPE = (2048, 2048)
CALLS = 8
ROWS, WIDTH, DIFFERENT = 16384, 256, 512
"""Rows of all hosts to be added up by id, and how many different ids each host has."""
HEADERS, SEGMENT = 14 + 20 + 32, 1500 - 20 - 32
"""Bytes of a packet that are not content (Ethernet, IPv4, TCP with time stamps), and of the content of a full one."""
FLAT, SQUARE = Mesh((Axis("d", 4),)), Mesh((Axis("x", 2), Axis("y", 2)))
MOVES = [
    (FLAT, "S(0)", "S(1)"),
    (FLAT, "S(0)", "B"),
    (FLAT, "P", "B"),
    (FLAT, "P", "S(0)"),
    (SQUARE, "S(0),B", "B,B"),
    (SQUARE, "S(0),P", "S(0),B"),
    (SQUARE, "P,P", "B,B"),
    (SQUARE, "P,S(0)", "S(1),S(0)"),
    (SQUARE, "S(0),S(1)", "S(1),S(0)"),
    (SQUARE, "S(0),S(0)", "B,S(0)"),
]


def counted(name: str) -> int:
    """What the network devices of this host have counted."""
    return sum(int(path.read_text()) for path in pathlib.Path("/sys/class/net").glob(f"e*/statistics/{name}"))


def sent() -> int:
    """Bytes of content that this host has sent, each once: a busy machine confirms in more packets and repeats some."""
    names, values = (line.split() for line in pathlib.Path("/proc/net/snmp").read_text().splitlines() if "Tcp:" in line)
    repeated = int(values[names.index("RetransSegs")])
    return counted("tx_bytes") - HEADERS * counted("tx_packets") - SEGMENT * repeated


def boxing(number: int, mesh: Mesh, source: Layout, target: Layout) -> str:
    """Registers a function that boxes once; returns its name."""
    here, writer, name = world.world(), FunctionWriter(), f"boxing_{number}"
    part = mesh.devices.index(here.rank)
    local = mesh.local_shape(SHAPE, source, part)
    guard, given = writer.argument("guard", "int32", ()), writer.argument("part", "float32", local)
    boxer = HorovodBoxer(writer, mesh, part, here.devices[0], name, guard, process_sets(mesh, here))
    (made,) = boxer.box([given], source, target, SHAPE, 0)
    result = writer.add("Identity", [made])[0]
    writer.finish(name, [result], boxer.finish())
    tf_private.register_function(writer.function_def)
    return name


def merging(number: int) -> str:
    """Registers a function that gathers rows of `SHAPE` once to be added up by id; returns its name."""
    here, writer, name = world.world(), FunctionWriter(), f"merging_{number}"
    split, whole = parse_layout("S(0)"), parse_layout("B")
    guard, ids = writer.argument("guard", "int32", ()), writer.argument("ids", "int64", (ROWS // 4,))
    rows = writer.argument("rows", "float32", (ROWS // 4, WIDTH))
    boxer = HorovodBoxer(writer, FLAT, here.rank, here.devices[0], name, guard, process_sets(FLAT, here))
    made = boxer.gather_rows(Boxing([ids], split, whole, (ROWS,)), Boxing([rows], split, whole, (ROWS, WIDTH)), 0)
    results = [writer.add("Identity", refs)[0] for refs in made]
    writer.finish(name, results, boxer.finish())
    tf_private.register_function(writer.function_def)
    return name


def together(name: str) -> None:
    """Waits for all ranks, and for what is under way."""
    gather_rows(name, np.zeros(1, np.int32))
    time.sleep(0.2)


def count(name: str, arguments: list[tf.Tensor], results: int) -> float:
    """Bytes that this host sends for a call of a function."""
    tf_private.call_function(name, arguments, results)  # connects
    together(f"before_{name}")
    # Horovod's ranks talk all the time, whether there is work or not.
    start, before = time.monotonic(), sent()
    time.sleep(0.5)
    idle = (sent() - before) / (time.monotonic() - start)
    together(f"begin_{name}")
    start, before = time.monotonic(), sent()
    for _ in range(CALLS):
        tf_private.call_function(name, arguments, results)
    together(f"after_{name}")
    return (sent() - before - idle * (time.monotonic() - start)) / CALLS


def main() -> None:
    wh.init()
    found, guard = [], tf.constant(0, tf.int32)
    for number, (mesh, source, target) in enumerate(MOVES):
        layouts = parse_layout(source), parse_layout(target)
        name = boxing(number, mesh, *layouts)
        part = tf.ones(mesh.local_shape(SHAPE, layouts[0], mesh.devices.index(wh.rank())))
        found.append(count(name, [guard, part], 1))
    ids = tf.constant(np.random.default_rng(wh.rank()).permutation(ROWS // 4) % DIFFERENT)
    found.append(count(merging(len(MOVES)), [guard, ids, tf.ones((ROWS // 4, WIDTH))], 2))
    print("SENT", json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
