"""Emission of chunks: the functions that run one stage's share of a micro-batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from whaleish.boxing.boxer import sums_in
from whaleish.boxing.local import LocalBoxer
from whaleish.chunks import Give
from whaleish.graph import LogicalGraph
from whaleish.mesh import Mesh, Shape
from whaleish.planner.plan import Plan
from whaleish.rewrite.emit import BoxerFactory, Emitted, Emitter
from whaleish.sbp import Sbp
from whaleish.writer import Ref


@dataclass(frozen=True)
class Total:
    """A piece of what is added up over the micro-batches, which lies in a resource in between.

    Attributes:
      piece: which of the chunk's pieces it is. shape: None where it is unknown. device: where it lies.
    """

    piece: int
    shape: Shape | None
    dtype: str
    device: str


@dataclass
class EmittedChunk:
    """A function that runs a chunk once.

    Its arguments are those of `emitted.arguments`, then what the boxer asked for, then the handle of each total.

    Attributes:
      pieces: for each give as how many pieces it comes, one after another.
      outputs: which of the pieces the function returns; before the last micro-batch no totals.
      totals: none where there is one micro-batch only.
    """

    emitted: Emitted
    pieces: tuple[int, ...]
    outputs: tuple[int, ...]
    totals: tuple[Total, ...]


def emit_chunk(
    graph: LogicalGraph,
    plan: Plan,
    gives: Sequence[Give],
    parts: Sequence[int],
    devices: Sequence[str],
    make_boxer: BoxerFactory,
    *,
    first: bool,
    last: bool,
) -> EmittedChunk:
    """Writes a chunk for the parts of one micro-batch that this process holds.

    Args:
      graph, plan: of the chunk, expanded. gives: what it gives, in the order of the graph's outputs.
      parts: numbers of the parts of the mesh of the chunk's stage. devices: of each.
      first, last: whether it is the first micro-batch, and the last.
    """
    emitter = Emitter(graph, plan, parts, devices, plan.mesh)
    emitted = emitter.run(make_boxer)
    made, refs, totals, pieces = iter(emitted.outputs), list[Ref | None](), list[Total](), list[int]()
    for give, tensor in zip(gives, graph.outputs, strict=True):
        shape, places = graph.tensors[tensor].shape, emitter.distinct(give.layout)
        pieces.append(len(places))
        for place in places:
            ref = next(made)
            if not give.adds_up or (first and last):
                refs.append(ref)
                continue
            own = None if shape is None else plan.mesh.local_shape(shape, give.layout, emitter.parts[place])
            dtype = emitter.writer.dtypes[ref]
            total = Total(len(refs), own, sums_in(dtype) if _sums(give, dtype) else dtype, emitter.devices[place])
            totals.append(total)
            refs.append(_add_up(emitted, total, ref, give, plan.mesh, first, last))
    emitted.outputs = [ref for ref in refs if ref is not None]
    returned = tuple(piece for piece, ref in enumerate(refs) if ref is not None)
    return EmittedChunk(emitted, tuple(pieces), returned, tuple(totals))


def _over(give: Give) -> Sbp:
    assert give.axis is not None
    return give.layout[give.axis]


def _sums(give: Give, dtype: str) -> bool:
    """Whether what adds up is a sum, and no maximum or minimum."""
    over = _over(give)
    return over.is_local or (over.kind == "P" and dtype != "bool")


def _add_up(emitted: Emitted, total: Total, ref: Ref, give: Give, mesh: Mesh, first: bool, last: bool) -> Ref | None:
    """Adds what was made now to the total, in place; after the last micro-batch returns it, and frees its storage."""
    writer, device, dtype, over = emitted.writer, total.device, total.dtype, _over(give)
    made, boxer = writer.dtypes[ref], LocalBoxer(writer, mesh, (), ())
    ref, sums = boxer.cast(ref, dtype, device), _sums(give, made)
    handle = writer.argument("total", "resource", total.shape, dtype)
    if over.is_local and give.axis is not None:  # the whole is the mean of the micro-batches' own
        (ref,) = writer.add("Mul", [ref, writer.const(1 / mesh.axes[give.axis].size, dtype, device)], device=device)
    if not first and not sums:
        (before,) = writer.add("ReadVariableOp", [handle], device=device, dtype=dtype)
        ref = boxer.reduce([before, ref], over, device)
    assign = "AssignAddVariableOp" if sums and not first else "AssignVariableOp"
    added, read, freed = (writer.fresh(name) for name in ("add_up", "total", "free"))
    writer.add(assign, [handle, ref], name=added, device=device)
    if not last:
        emitted.must_run.append(added)
        return None
    (whole,) = writer.add("ReadVariableOp", [handle], name=read, device=device, controls=[added], dtype=dtype)
    writer.add("DestroyResourceOp", [handle], name=freed, device=device, controls=[read], ignore_lookup_error=True)
    emitted.must_run.append(freed)
    return boxer.cast(whole, made, device)
