"""The entry of a step with stages over several processes: do all run the same one, and what is its whole batch?"""

from __future__ import annotations

from collections.abc import Sequence

from whaleish.boxing.horovod import HorovodBoxer
from whaleish.graph import Tensor
from whaleish.mesh import Axis, Mesh
from whaleish.rewrite.check import write_check
from whaleish.sbp import B, Layout
from whaleish.writer import FunctionWriter


def entry_function(
    name: str, identity: int, arguments: Sequence[tuple[Tensor, Layout]], size: int, rank: int, device: str
) -> FunctionWriter:
    """A function that every process runs before the chunks of a step.

    It takes the arguments as they arrive, whole or this process's rows, then an int32 that is always 0, the hash of the
    batch, and the number that stands for what the program assigned to variables. It returns the arguments, whole.

    Args:
      name: begins the names by which processes match their collectives.
      identity: stands for the step.
      arguments: each with its layout over the processes.
    """
    writer, mesh = FunctionWriter(), Mesh((Axis("d", size),), tuple(range(size)))
    refs = []
    for tensor, layout in arguments:
        shape = tensor.shape if tensor.shape is None else mesh.local_shape(tensor.shape, layout, rank)
        refs.append(writer.argument("argument", tensor.dtype, shape))
    guard, batch = writer.argument("guard", "int32", ()), writer.argument("batch", "int64", ())
    assigned = writer.argument("assigned", "int64", ())
    boxer = HorovodBoxer(writer, mesh, rank, device, name, guard)
    given = list(zip(refs, arguments, strict=True))
    compared = [(ref, tensor.shape or ()) for ref, (tensor, layout) in given if layout == (B,)]
    boxer.gate = write_check(boxer, writer.const(identity, "int64", device), assigned, batch, compared)
    wholes = [
        ref if layout == (B,) else boxer.box([ref], layout, (B,), tensor.shape or (), 0)[0]
        for ref, (tensor, layout) in given
    ]
    results = [writer.add("Identity", [ref], device=device)[0] for ref in wholes]
    writer.finish(f"__{name}", results, boxer.finish())
    return writer
