"""The check that opens every call of a step over Horovod: do all ranks run the same program, from the same
variables, on the same batch?

Each rank contributes (x, -x) for each number x that must agree. The elementwise maximum over the ranks is (max, -min),
so any two ranks that differ show on every rank. It is one small collective, which the step's others wait for: after a
disagreement none of them starts, and no rank is left waiting in one.

A rank that calls with arguments it has no program for yet meets the others in the same collective, with a number that
stands for those arguments, before it compiles.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from whaleish.boxing.horovod import HorovodBoxer
from whaleish.mesh import Axis, Mesh
from whaleish.writer import FunctionWriter, Ref

NAME = "whaleish_check"
STEPS_DIFFER = "whaleish: ranks run different steps"
BATCHES_DIFFER = "whaleish: ranks were given different batches"
ASSIGNED_DIFFER = "whaleish: ranks assigned differently to variables"

Inputs = Sequence[tuple[Ref, tuple[int, ...]]]


def write_check(boxer: HorovodBoxer, identity: Ref, assigned: Ref, batch: Ref, inputs: Inputs) -> list[str]:
    """Writes the check; returns the nodes that must have run before any other collective.

    Args:
      identity: an int64 scalar that stands for what is about to run; below 2**62 in size.
      assigned: the same for what the program assigned to the step's variables since the last step.
      batch: an int64 scalar, a hash of the parts of the batch that are not in `inputs`.
      inputs: arguments, with their shapes, that must be equal on all ranks.
    """
    writer, device = boxer.writer, boxer.devices[0]
    numbers = [identity, assigned, _hash_all(writer, batch, inputs, device)]
    (both,) = writer.add("Pack", numbers, device=device, axis=0)
    (negative,) = writer.add("Neg", [both], device=device)
    axis = writer.const(0, "int32", device)
    (sent,) = writer.add("ConcatV2", [both, negative, axis], device=device)
    most = boxer.all_max(sent, (2 * len(numbers),), NAME)
    nodes: list[str] = []
    messages = (STEPS_DIFFER, ASSIGNED_DIFFER, BATCHES_DIFFER)
    for number, (own, message) in enumerate(zip(numbers, messages, strict=True)):
        high, low = (_element(writer, most, place, device) for place in (number, number + len(numbers)))
        (lowest,) = writer.add("Neg", [low], device=device)
        (equal,) = writer.add("Equal", [high, lowest], device=device)
        text = writer.const(message.encode(), "string", device)
        name = writer.fresh("check")
        writer.add("Assert", [equal, text, own, high, lowest], name=name, device=device, controls=nodes)
        nodes = [name]
    boxer.ran += nodes  # a step may have nothing that waits for it: no collective, no assignment
    return nodes


def open_step(
    writer: FunctionWriter, make_boxer: Callable[[Ref], HorovodBoxer], identity: int, inputs: Inputs
) -> HorovodBoxer:
    """The boxer of a function with which a step begins: all that it writes waits for the check.

    The function gets three more arguments, whose values are `opening.opening_numbers`.

    Args:
      make_boxer: makes it, given the guard of its collectives.
      identity, inputs: as for `write_check`.
    """
    guard, batch = writer.argument("guard", "int32", ()), writer.argument("batch", "int64", ())
    assigned = writer.argument("assigned", "int64", ())
    boxer = make_boxer(guard)
    boxer.gate = write_check(boxer, writer.const(identity, "int64", boxer.devices[0]), assigned, batch, inputs)
    return boxer


def check_function(name: str, size: int, rank: int, device: str) -> FunctionWriter:
    """A function of (identity, guard) that does the check alone, for a call that has no program yet."""
    writer = FunctionWriter()
    identity, guard = writer.argument("identity", "int64", ()), writer.argument("guard", "int32", ())
    boxer = HorovodBoxer(writer, Mesh((Axis("d", size),)), rank, device, "opening", guard)
    zero = writer.const(0, "int64", device)
    write_check(boxer, identity, zero, zero, [])
    writer.finish(name, [], boxer.finish())
    return writer


def _element(writer: FunctionWriter, vector: Ref, place: int, device: str) -> Ref:
    begin, size = writer.const([place], "int32", device), writer.const([1], "int32", device)
    (piece,) = writer.add("Slice", [vector, begin, size], device=device)
    return writer.add("Reshape", [piece, writer.const([], "int32", device)], device=device)[0]


def _hash_all(writer: FunctionWriter, batch: Ref, inputs: Inputs, device: str) -> Ref:
    total = batch
    for number, (ref, shape) in enumerate(inputs, 1):
        hashed = _hash(writer, ref, shape, device)
        if hashed is not None:
            (scaled,) = writer.add("Mul", [hashed, writer.const(2 * number + 1, "int64", device)], device=device)
            (total,) = writer.add("AddV2", [total, scaled], device=device)
    # Kept small, so that its negative exists.
    return writer.add("FloorMod", [total, writer.const((1 << 61) - 1, "int64", device)], device=device)[0]


_BITS = {"float32": "int32", "float64": "int64", "float16": "int16", "bfloat16": "int16", "complex64": "int64"}


def _hash(writer: FunctionWriter, ref: Ref, shape: tuple[int, ...], device: str) -> Ref | None:
    """Sums of bits, weighted by row and by place in the row, so that what is in another order differs too."""
    dtype = writer.dtypes[ref]
    if dtype == "string":
        (ref,) = writer.add("StringToHashBucketFast", [ref], device=device, num_buckets=1 << 40)
    elif dtype in _BITS:
        (ref,) = writer.add("Bitcast", [ref], device=device, type=_BITS[dtype])
    elif dtype not in ("int8", "uint8", "int16", "uint16", "int32", "int64", "bool"):
        return None
    if writer.dtypes[ref] not in ("int32", "int64"):
        (ref,) = writer.add("Cast", [ref], device=device, DstT="int32")
    # Weighted by the place in the row too: a flipped image, or tokens in another order, have the same bits.
    kind, count = writer.dtypes[ref], prod(shape[1:])
    start, limit, step = (writer.const(number, kind, device) for number in (1, 2 * count + 1, 2))
    (places,) = writer.add("Range", [start, limit, step], device=device, Tidx=kind)
    (places,) = writer.add("Reshape", [places, writer.const([count, 1], "int32", device)], device=device)
    rows_and_places = writer.const([shape[0] if shape else 1, count], "int32", device)
    (flat,) = writer.add("Reshape", [ref, rows_and_places], device=device)
    (rows,) = writer.add("MatMul", [flat, places], device=device)
    (rows,) = writer.add("Cast", [rows], device=device, DstT="int64")
    (rows,) = writer.add("Reshape", [rows, writer.const(shape[:1], "int32", device)], device=device)
    if shape:
        weights = writer.const([2 * row + 1 for row in range(shape[0])], "int64", device)
        (rows,) = writer.add("Mul", [rows, weights], device=device)
        (rows,) = writer.add("Sum", [rows, writer.const([0], "int32", device)], device=device, keep_dims=False)
    return rows
