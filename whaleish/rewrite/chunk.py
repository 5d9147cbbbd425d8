"""Emission of chunks: the functions that run one stage's share of a micro-batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from whaleish.boxing.local import LocalBoxer
from whaleish.chunks import Chunk, Give
from whaleish.mesh import Mesh
from whaleish.rewrite.emit import BoxerFactory, Emitted, Emitter
from whaleish.rewrite.expand import expand
from whaleish.sbp import P
from whaleish.writer import FunctionWriter, Ref


@dataclass
class EmittedChunk:
    """A function that runs a chunk once.

    Its arguments are those of `emitted.arguments`, then what the boxer asked for, then the running totals, in the order
    of the gives that are added up.

    Attributes:
      pieces: for each give as how many of the outputs it comes, one after another.
    """

    emitted: Emitted
    pieces: tuple[int, ...]


def emit_chunk(
    chunk: Chunk, parts: Sequence[int], devices: Sequence[str], make_boxer: BoxerFactory, *, further: bool
) -> EmittedChunk:
    """Writes a chunk for the parts of one micro-batch that this process holds.

    Args:
      parts: numbers of the parts of the mesh of the chunk's stage. devices: of each.
      further: whether it adds to what came of earlier micro-batches.
    """
    graph, plan = expand(chunk.graph, chunk.plan)
    emitter = Emitter(graph, plan, parts, devices, plan.mesh)
    emitted = emitter.run(make_boxer)
    made, results, pieces = iter(emitted.outputs), [], []
    for give in chunk.gives:
        places = emitter.distinct(give.layout)
        refs = [next(made) for _ in places]
        if adds_up(give):
            own = [emitter.devices[place] for place in places]
            refs = _added(emitter.writer, plan.mesh, give, refs, own, further)
        results += refs
        pieces.append(len(refs))
    emitted.outputs = results
    return EmittedChunk(emitted, tuple(pieces))


def adds_up(give: Give) -> bool:
    """Whether what is given is the running total over the micro-batches."""
    return give.axis is not None and not give.layout[give.axis].is_split


def _added(
    writer: FunctionWriter, mesh: Mesh, give: Give, refs: list[Ref], devices: Sequence[str], further: bool
) -> list[Ref]:
    """The total so far: what came before, an argument for each piece, and what was made now."""
    assert give.axis is not None
    over = give.layout[give.axis]
    boxer = LocalBoxer(writer, mesh, (), ())
    totals = []
    for ref, device in zip(refs, devices, strict=True):
        if over.is_local:  # the whole is the mean of the micro-batches' own
            share = writer.const(1 / mesh.axes[give.axis].size, writer.dtypes[ref], device)
            (ref,) = writer.add("Mul", [ref, share], device=device)
        if further:
            before = writer.argument("total", writer.dtypes[ref], None)
            ref = boxer.reduce([before, ref], P if over.is_local else over, device)
        totals.append(ref)
    return totals
