"""The phase of each op: forward, backward or update. A hint: results never depend on it.

- BACKWARD: ops whose name or function says that a gradient tape made them, what lies between two such ops, and sums
  of only such ops (a weight's gradient from several uses).
- UPDATE: ops that depend on a backward op or wait for an update (the new weight is made of slots just written, the step
  counter waits for its readers) and that no backward op depends on; assignments to trainable variables that come after
  the first backward op (weight decay needs no gradient); and ops from which every path leads to those
  (learning rates, beta powers, reads of slots). Of a tape's ops the cast of a gradient in half precision to the type of
  the weight, so that it casts sums over devices and micro-batches, as on one device.
- FORWARD: the rest, so also batch norm's moving averages, metrics, random seeds, and the second forward of a step that
  trains two networks in turn.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from whaleish.graph import BACKWARD, FORWARD, UPDATE, LogicalGraph, Op

_OF_A_TAPE = re.compile(r"(^|/)(gradient_tape|gradients(_\d+)?)/")


def find_phases(graph: LogicalGraph, backward: Collection[str] = ()) -> None:
    """Sets `phase` of every op; `backward` names ops that came out of backward functions."""
    ops, tensors = graph.ops, graph.tensors
    size = len(ops)
    named = [op.name in backward or bool(_OF_A_TAPE.search(op.name)) for op in ops]
    sources = [[tensors[tensor].producer for tensor in op.inputs] for op in ops]
    readers: list[list[int]] = [[] for _ in ops]
    after, before = [False] * size, [False] * size  # depends on a backward op; a backward op depends on it
    for number in range(size):
        for source in sources[number]:
            readers[source].append(number)
            after[number] |= named[source] or after[source]
    for number in range(size - 1, -1, -1):
        before[number] = any(named[reader] or before[reader] for reader in readers[number])
    outputs = {tensors[tensor].producer for tensor in graph.outputs}
    trained = {variable.handle for variable in graph.variables if variable.trainable}
    begun = False
    for number, op in enumerate(ops):
        summed = op.type == "AddN" and all(ops[source].phase == BACKWARD for source in sources[number])
        begun |= named[number]
        decays = begun and not op.outputs and any(tensor in trained for tensor in op.inputs)
        waits = decays or any(ops[earlier].phase == UPDATE for earlier in (*op.controls, *sources[number]))
        if named[number] or (after[number] and before[number]) or summed:
            op.phase = BACKWARD
        else:
            # A step's outputs wait for all its effects: that alone makes a loss no part of the update.
            waits &= number not in outputs and not before[number]
            op.phase = UPDATE if (after[number] and not before[number]) or waits else FORWARD
    for number in range(size - 1, -1, -1):
        op = ops[number]
        last = bool(readers[number]) and all(ops[reader].phase == UPDATE for reader in readers[number])
        if op.phase == BACKWARD and last and number not in outputs and _widens(graph, op):
            op.phase = UPDATE
    effects = set(graph.effects)
    for number in range(size - 1, -1, -1):
        op = ops[number]
        only_update = readers[number] and all(ops[reader].phase == UPDATE for reader in readers[number])
        if op.phase == FORWARD and only_update and number not in outputs and number not in effects:
            op.phase = UPDATE
    for op in ops:  # the step counter, whose readers have turned out to be of the update
        if op.phase == FORWARD and not op.outputs and any(ops[control].phase == UPDATE for control in op.controls):
            op.phase = UPDATE


def _widens(graph: LogicalGraph, op: Op) -> bool:
    """Whether an op casts half precision to another type."""
    return op.type == "Cast" and graph.tensors[op.inputs[0]].dtype in ("bfloat16", "float16")
