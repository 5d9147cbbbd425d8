"""Boxing between processes: Horovod's ops as nodes of the graph.

TensorFlow holds Horovod's ops to be pure, and so merges those that look equal, folds those whose input is constant and
prunes those that nothing reads. Any of these on one rank alone leaves the others waiting or gives wrong sums. So each
node carries a number of its own, its input always depends on an argument of the function, and all of them are reported
by `finish` to be made reachable from the function's outputs.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from whaleish.boxing.boxer import Boxer, overlap
from whaleish.graph import layout_bytes
from whaleish.mesh import Mesh
from whaleish.sbp import Layout, Sbp
from whaleish.writer import FunctionWriter, Ref, output_ref

SUM, MIN, MAX = 1, 3, 4  # Horovod's numbers for its reductions
GROUP_BYTES = 4 << 20
_REDUCTIONS = {"P": SUM, "Pmax": MAX, "Pmin": MIN}
# Types that Horovod does not move travel as the bits of another; those that it does not add are added in another type.
_MOVED_AS = {"bfloat16": "uint16", "uint32": "int32", "uint64": "int64", "complex64": "int64", "complex128": "float64"}
# (Sums of uint8 saturate in MPI, and wrap in TensorFlow.)
_ADDED_AS = {"bfloat16": "float32", "uint32": "int64", "uint64": "int64"} | dict.fromkeys(
    ["bool", "int8", "uint8", "int16", "uint16"], "int32"
)
_SCATTERED = frozenset(["int32", "int64", "float16", "float32", "float64"])  # what its reduce-scatter takes
_COMPLEX = {"complex64": "float32", "complex128": "float64"}


@dataclass
class _Group:
    """All-reduces that travel together."""

    name: str
    inputs: list[Ref] = field(default_factory=list)
    nbytes: int = 0


class HorovodBoxer(Boxer):
    """One part per process.

    Args:
      prefix: begins the names by which ranks match their collectives; it identifies the plan.
      guard: an int32 scalar argument that is always 0, mixed into the inputs of collectives so that none is constant.
    """

    def __init__(self, writer: FunctionWriter, mesh: Mesh, part: int, device: str, prefix: str, guard: Ref) -> None:
        super().__init__(writer, mesh, [part], [device])
        self.prefix = prefix
        self._guard: Callable[[], Ref] = lambda: guard
        self._numbers = itertools.count()
        self.ran: list[str] = []
        self._by_rank = sorted(range(mesh.size), key=lambda k: mesh.devices[k])  # parts in the order of their ranks
        self._groups: dict[tuple[str, int, int], _Group] = {}
        self._count = 0

    def inside(self, writer: FunctionWriter, region: int, bring: Callable[[Ref], Ref]) -> HorovodBoxer:
        """Its nodes have names and numbers that none of this boxer's have: bodies are inlined into their callers."""
        inner = HorovodBoxer(writer, self.mesh, self.parts[0], self.devices[0], f"{self.prefix}_{region}", "")
        inner._guard = functools.cache(lambda: bring(self._guard()))
        inner._numbers = self._numbers
        return inner

    def whole(self, refs: list[Ref], source: Sbp, shape: tuple[int, ...], depth: int) -> list[Ref]:
        if source.is_split:
            return [self._gather(refs[0], source, shape)]
        return [self._all_reduce(refs[0], source, shape, depth)]

    def scatter(self, refs: list[Ref], source: Sbp, target: Layout, shape: tuple[int, ...], depth: int) -> list[Ref]:
        (sbp,), (axis,) = target, self.mesh.axes
        dtype, length = self.writer.dtypes[refs[0]], shape[sbp.dim]
        # Horovod deals rows out as an axis without shares does, in the order of the ranks, and not by larger units.
        native = axis.shares is None and axis.normal(sbp, length).unit == 1 and length >= axis.size
        native = native and self._by_rank == list(range(axis.size))
        if source.kind != "P" or not native or dtype not in _SCATTERED:
            return [self.cut(self.whole(refs, source, shape, depth)[0], shape, target, 0)]
        order = [sbp.dim, *(d for d in range(len(shape)) if d != sbp.dim)]
        front = self._guarded(self._transpose(refs[0], order), [shape[d] for d in order])
        made = self._transpose(
            self._collective("HorovodReducescatter", [front], reduce_op=SUM)[0],
            [order.index(d) for d in range(len(shape))],
        )
        return [self._shaped(made, self.mesh.local_shape(shape, target, self.parts[0]))]

    def exchange(
        self, refs: list[Ref], source: Layout, target: Layout, shape: tuple[int, ...], depth: int
    ) -> list[Ref]:
        part, parts, device = self.parts[0], range(self.mesh.size), self.devices[0]
        held = [self.mesh.pieces(shape, source, k) for k in parts]
        wanted = [self.mesh.pieces(shape, target, k) for k in parts]
        sent = [overlap(wanted[k], held[part]) for k in self._by_rank]
        blocks = [self._flat(self.slice(refs[0], pieces, device)) for pieces in sent]
        (buffer,) = self.writer.add("ConcatV2", [*blocks, self.writer.const(0, "int32", device)], device=device)
        counts = [prod(length for _, length in pieces) for pieces in sent]
        splits = self.writer.const(counts, "int32", device)
        received = self._moved(buffer, [sum(counts)], lambda ref: self._collective("HorovodAlltoall", [ref, splits])[0])
        arriving = [[length for _, length in overlap(wanted[part], h)] for h in held]
        return [self._unpack(received, arriving, source[0].dim)]

    def finish(self) -> list[str]:
        for (_, reduction, _), group in sorted(self._groups.items()):
            self._write("HorovodGroupedAllreduce", group.inputs, group.name, reduce_op=reduction)
        self._groups = {}
        return self.ran

    def all_max(self, ref: Ref, shape: tuple[int, ...], name: str) -> Ref:
        """The elementwise maximum over ranks, under a name of the caller's."""
        return self._write("HorovodAllreduce", [self._guarded(ref, shape)], name, reduce_op=MAX)[0]

    def _all_reduce(self, ref: Ref, source: Sbp, shape: tuple[int, ...], depth: int) -> Ref:
        dtype = self.writer.dtypes[ref]
        if dtype in _COMPLEX:
            real = self._add("Bitcast", [ref], type=_COMPLEX[dtype])
            return self._add("Bitcast", [self._all_reduce(real, source, (*shape, 2), depth)], type=dtype)
        if dtype in _ADDED_AS:
            wide = self._add("Cast", [ref], DstT=_ADDED_AS[dtype])
            return self._add("Cast", [self._all_reduce(wide, source, shape, depth)], DstT=dtype)
        if source.kind != "P" and dtype.startswith("float"):
            return self._extreme(ref, source, shape, depth)
        return self._grouped(ref, source, shape, depth)

    def _extreme(self, ref: Ref, source: Sbp, shape: tuple[int, ...], depth: int) -> Ref:
        """A maximum or minimum in which a NaN of any rank survives, as on one device; Horovod's loses it.

        Whether there is one travels beside the values, in the same message.
        """
        dtype, device = self.writer.dtypes[ref], self.devices[0]
        last, sign = (float("-inf"), 1.0) if source.kind == "Pmax" else (float("inf"), -1.0)
        nan = self._add("IsNan", [ref])
        clean = self._add("SelectV2", [nan, self.writer.const(last, dtype, device), ref])
        flag = self._add("Mul", [self._add("Cast", [nan], DstT=dtype), self.writer.const(sign, dtype, device)])
        whole, flags = (self._grouped(part, source, shape, depth) for part in (clean, flag))
        anywhere = self._add("NotEqual", [flags, self.writer.const(0.0, dtype, device)])
        return self._add("SelectV2", [anywhere, self.writer.const(float("nan"), dtype, device), whole])

    def _grouped(self, ref: Ref, source: Sbp, shape: tuple[int, ...], depth: int) -> Ref:
        dtype = self.writer.dtypes[ref]
        key = (dtype, _REDUCTIONS[source.kind], depth)
        group = self._groups.get(key)
        if group is None or group.nbytes >= GROUP_BYTES:
            if group is not None:
                self._write("HorovodGroupedAllreduce", group.inputs, group.name, reduce_op=key[1])
            group = self._groups[key] = _Group(self._name("all_reduce"))
        group.inputs.append(self._guarded(ref if shape else self._flat(ref), shape or (1,)))
        group.nbytes += layout_bytes(shape, dtype)
        made = self.writer.declare(output_ref(group.name, "sum", len(group.inputs) - 1), dtype)
        return made if shape else self._add("Reshape", [made, self.writer.const([], "int32", self.devices[0])])

    def _gather(self, ref: Ref, source: Sbp, shape: tuple[int, ...]) -> Ref:
        local = self.mesh.local_shape(shape, (source,), self.parts[0])
        gather = lambda moved: self._collective("HorovodAllgather", [moved])[0]  # noqa: E731
        if source.dim == 0 and self._by_rank == list(range(self.mesh.size)):
            return self._shaped(self._moved(ref, local, gather), shape)
        shapes = [self.mesh.local_shape(shape, (source,), k) for k in range(self.mesh.size)]
        return self._unpack(self._moved(self._flat(ref), [prod(local)], gather), shapes, source.dim)

    def _unpack(self, buffer: Ref, shapes: Sequence[Sequence[int]], dim: int) -> Ref:
        """The parts' blocks, which lie in a flat buffer in the order of their ranks, joined along a dim."""
        device, offset, blocks = self.devices[0], 0, {}
        for part in self._by_rank:
            count = prod(shapes[part])
            if count or all(prod(other) == 0 for other in shapes):
                piece = self.slice(buffer, [(offset, count)], device)
                dims = self.writer.const(list(shapes[part]), "int32", device)
                blocks[part] = self._add("Reshape", [piece, dims])
            offset += count
        if len(blocks) == 1:  # all others are empty
            return next(iter(blocks.values()))
        return self._add(
            "ConcatV2", [*(blocks[part] for part in sorted(blocks)), self.writer.const(dim, "int32", device)]
        )

    def _moved(self, ref: Ref, shape: Sequence[int], move: Callable[[Ref], Ref]) -> Ref:
        """Moves a tensor in the bits of a type that Horovod takes."""
        dtype = self.writer.dtypes[ref]
        if dtype not in _MOVED_AS:
            return move(self._guarded(ref, shape))
        if dtype == "complex128":
            raise NotImplementedError("complex128 tensors are only summed, not moved, between processes yet")
        bits = self._add("Bitcast", [ref], type=_MOVED_AS[dtype])
        return self._add("Bitcast", [move(self._guarded(bits, shape))], type=dtype)

    def _collective(self, type: str, inputs: list[Ref], **attrs: int) -> list[Ref]:
        return self._write(type, inputs, self._name(type.removeprefix("Horovod").lower()), **attrs)

    def _write(self, type: str, inputs: list[Ref], name: str, **attrs: int) -> list[Ref]:
        scales = {"prescale_factor": 1.0, "postscale_factor": 1.0} if "reduce_op" in attrs else {}
        made = self.writer.add(
            type,
            inputs,
            name=name,
            device=self.devices[0],
            controls=self.gate,
            ignore_name_scope=True,
            process_set_id=0,
            _whaleish_number=next(self._numbers),
            **attrs,
            **scales,
        )
        self.ran.append(name)
        return made

    def _guarded(self, ref: Ref, shape: Sequence[int]) -> Ref:
        """The same tensor, which TensorFlow cannot take for a constant; it has at least one dim.

        It is a slice that begins where an argument says, and ends where the tensor does, so nothing is copied. (Hiding
        the shape by a `Reshape` does not help: TensorFlow infers it backwards, from what reads the result.)
        """
        begin = self._add("Pack", [self._guard()] * len(shape), axis=0)
        return self._add("Slice", [ref, begin, self.writer.const(list(shape), "int32", self.devices[0])])

    def _shaped(self, ref: Ref, shape: Sequence[int]) -> Ref:
        """The same tensor; TensorFlow is told the shape, which it does not know of what was gathered."""
        return self._add("EnsureShape", [ref], shape=tuple(shape))

    def _flat(self, ref: Ref) -> Ref:
        return self._add("Reshape", [ref, self.writer.const([-1], "int32", self.devices[0])])

    def _transpose(self, ref: Ref, order: list[int]) -> Ref:
        if order == list(range(len(order))):
            return ref
        return self._add("Transpose", [ref, self.writer.const(order, "int32", self.devices[0])])

    def _add(self, type: str, inputs: list[Ref], /, **attrs: Any) -> Ref:
        return self.writer.add(type, inputs, device=self.devices[0], **attrs)[0]

    def _name(self, kind: str) -> str:
        self._count += 1
        return f"{self.prefix}_{kind}_{self._count}"
