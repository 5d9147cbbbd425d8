"""The entry of a step with stages over several processes: do all run the same one, and what is its whole batch?"""

from __future__ import annotations

from collections.abc import Sequence

from tensorflow.core.framework.function_pb2 import FunctionDef

from whaleish.boxing.horovod import HorovodBoxer
from whaleish.graph import Tensor
from whaleish.mesh import Axis, Mesh
from whaleish.rewrite.check import open_step
from whaleish.sbp import B, Layout
from whaleish.writer import FunctionWriter


def entry_function(
    name: str, identity: int, arguments: Sequence[tuple[Tensor, Layout]], size: int, rank: int, device: str
) -> FunctionDef:
    """A function that every process runs before the chunks of a step.

    It takes the arguments as they arrive, whole or this process's rows, and what `open_step` adds. It returns the
    arguments, whole.

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
    given = list(zip(refs, arguments, strict=True))
    compared = [(ref, tensor.shape or ()) for ref, (tensor, layout) in given if layout == (B,)]
    boxer = open_step(writer, lambda guard: HorovodBoxer(writer, mesh, rank, device, name, guard), identity, compared)
    wholes = [boxer.box([ref], layout, (B,), tensor.shape or (), 0)[0] for ref, (tensor, layout) in given]
    results = [writer.add("Identity", [ref], device=device)[0] for ref in wholes]
    return writer.finish(f"__{name}", results, boxer.finish())
