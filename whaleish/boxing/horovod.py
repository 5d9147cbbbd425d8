"""Boxing between processes: Horovod's ops as nodes of the graph.

TensorFlow holds Horovod's ops to be pure, and so merges those that look equal, folds those whose input is constant and
prunes those that nothing reads. Any of these on one rank alone leaves the others waiting or gives wrong sums. So each
node carries a number of its own, its input always depends on an argument of the function, and all of them are reported
by `finish` to be made reachable from the function's outputs.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, NamedTuple

from whaleish.boxing.boxer import NARROW, Boxer, Boxing, Group
from whaleish.boxing.route import Exchange, Pieces
from whaleish.boxing.transfer import Transfer
from whaleish.graph import layout_bytes
from whaleish.mesh import Mesh
from whaleish.sbp import Sbp
from whaleish.writer import FunctionWriter, Ref, output_ref

SUM, MIN, MAX = 1, 3, 4  # Horovod's numbers for its reductions
EVERYBODY = 0  # Horovod's number for the process set of all ranks
GROUP_BYTES = 4 << 20
_REDUCTIONS = {"P": SUM, "Pmax": MAX, "Pmin": MIN}
# Types that Horovod does not move travel as the bits of another; those that it does not add are added in another type.
MOVED_AS = {"bfloat16": "uint16", "uint32": "int32", "uint64": "int64", "complex64": "int64", "complex128": "float64"}
# (Sums of uint8 saturate in MPI, and wrap in TensorFlow.)
_ADDED_AS = (
    dict.fromkeys(NARROW, "float32")
    | dict.fromkeys(["uint32", "uint64"], "int64")
    | dict.fromkeys(["bool", "int8", "uint8", "int16", "uint16"], "int32")
)
_NOT_SENT = frozenset(["bool", "complex128"])  # what is summed, but not sent piece by piece
_COMPLEX = {"complex64": "float32", "complex128": "float64"}


class Sets(NamedTuple):
    """Horovod's numbers of the process sets of a rank that is one of a mesh.

    Attributes:
      along: of its group along each axis. all: of all ranks of the mesh.
    """

    along: tuple[int, ...] = (EVERYBODY,)
    all: int = EVERYBODY


WORLD = Sets()
"""Those of a mesh that is one axis of all processes."""


@dataclass
class _Sums:
    """All-reduces that travel together."""

    name: str
    inputs: list[Ref] = field(default_factory=list)
    nbytes: int = 0


class HorovodBoxer(Boxer):
    """One part per process.

    Args:
      prefix: begins the names by which ranks match their collectives; it identifies the plan.
      guard: an int32 scalar argument that is always 0, mixed into the inputs of collectives so that none is constant.
      sets: of this process on the mesh; by default that has one axis, and all processes.
    """

    def __init__(
        self,
        writer: FunctionWriter,
        mesh: Mesh,
        part: int,
        device: str,
        prefix: str,
        guard: Ref,
        sets: Sets = WORLD,
    ) -> None:
        super().__init__(writer, mesh, [part], [device])
        self.prefix, self.sets = prefix, sets
        self._guard: Callable[[], Ref] = lambda: guard
        self._numbers = itertools.count()
        self.rank = mesh.device(part)
        self._others: list[HorovodBoxer] = []  # on other meshes, in the same function
        self.ran: list[str] = []
        self._sums: dict[tuple[str, int, int, int], _Sums] = {}
        self._count = 0

    def inside(self, writer: FunctionWriter, region: int, bring: Callable[[Ref], Ref]) -> HorovodBoxer:
        """Its nodes have names and numbers that none of this boxer's have: bodies are inlined into their callers."""
        prefix = f"{self.prefix}_{region}"
        inner = HorovodBoxer(writer, self.mesh, self.parts[0], self.devices[0], prefix, "", self.sets)
        inner._guard = functools.cache(lambda: bring(self._guard()))
        inner._numbers = self._numbers
        return inner

    def whole(self, group: Group, refs: list[Ref], source: Sbp, depth: int) -> list[Ref]:
        if source.is_split:
            return [self._gather(group, refs[0], source)]
        return [self._all_reduce(refs[0], source, group.shape, depth, self.sets.along[group.number])]

    def scatter(self, group: Group, refs: list[Ref], source: Sbp, target: Sbp, depth: int) -> list[Ref]:
        """Sends each member its piece of the own summand, and adds up what comes.

        That is what a reduce-scatter has to send, for any cuts, order of the ranks and type. Horovod's own takes
        even cuts of some types only, and over Gloo sends 17% more between four hosts (measured).
        """
        dtype, device, position = self.writer.dtypes[refs[0]], self.devices[0], group.positions[0]
        if source.kind != "P" or dtype in _NOT_SENT:
            whole = self.whole(group, refs, source, depth)[0]
            return [self.slice(whole, group.pieces(target, position), device)]
        pieces = [group.pieces(target, group.members.index(member)) for member in self._by_rank(group.members)]
        received = self._all_to_all(refs[0], dtype, pieces, self.sets.along[group.number])
        shape = [len(pieces), *group.local_shape(target, position)]
        summands = self._add("Reshape", [received, self.writer.const(shape, "int32", device)])
        first = self.writer.const([0], "int32", device)
        total = self._add("Sum", [self.wide(summands, device), first], keep_dims=False)
        return [self.cast(total, dtype, device)]

    def exchange(self, refs: list[Ref], exchange: Exchange) -> list[Ref]:
        part = self.parts[0]
        members = self._by_rank(exchange.members(part))
        sent = [exchange.block(part, k) if part in exchange.senders(k) else None for k in members]
        number = self.sets.all if exchange.axis is None else self.sets.along[exchange.axis]
        return [self._unpack(self._all_to_all(refs[0], self.writer.dtypes[refs[0]], sent, number), exchange)]

    def gather_rows(self, ids: Boxing, rows: Boxing, depth: int) -> tuple[list[Ref], list[Ref]]:
        """Each process adds up its rows of one id and sends them once, so as many as it has different ids.

        Behind those that arrive follow zeros for row 0, which change no sum, up to the length that is planned.
        """
        source, target = ids.source, ids.target
        gathered = [k for k, axis in enumerate(self.mesh.axes) if source[k] != target[k] and axis.size > 1]
        if any(target[k].is_split for k in range(min(gathered, default=0), len(target))):
            return super().gather_rows(ids, rows, depth)  # parts further in share the rows out
        (own,), (values,) = ids.refs, rows.refs
        for axis in reversed(gathered):
            different, place = self.writer.add("Unique", [own], device=self.devices[0], out_idx="int32")
            summed = self._add("UnsortedSegmentSum", [values, place, self._add("Size", [different], out_type="int32")])
            own = self._all_gather(different, [-1], self.sets.along[axis])
            values = self._all_gather(summed, [-1] * len(rows.shape), self.sets.along[axis])
        local = [self.mesh.local_shape(boxing.shape, boxing.target, self.parts[0]) for boxing in (ids, rows)]
        length = self.writer.const(local[0][0], "int32", self.devices[0])
        missing = self._add("Sub", [length, self._add("Size", [own], out_type="int32")])
        return [self._filled(own, missing, local[0])], [self._filled(values, missing, local[1])]

    def transfer(self, ref: Ref | None, dtype: str, transfer: Transfer, number: int, sets: Sets = WORLD) -> Ref | None:
        """A tensor on the devices of another mesh. All processes of both meshes call this.

        Args:
          ref: this process's part on `transfer.mesh`; None if it has none.
          number: of the process set of `transfer.devices`.
          sets: of this process on `transfer.after`.

        Returns:
          This process's part on `transfer.after`; None if it has none.
        """
        before, after, device = transfer.mesh.devices, transfer.after.devices, self.devices[0]
        pairs, arrival = set(transfer.pairs()), transfer.arrival
        sent: list[Pieces | None] = []
        for rank in transfer.devices:
            pair = (after.index(rank), before.index(self.rank)) if rank in after and self.rank in before else None
            sent.append(arrival.block(pair[1], pair[0]) if pair is not None and pair in pairs else None)
        received = self._all_to_all(ref, dtype, sent, number)
        prefix = self._name("transfer")  # counted on all ranks alike
        if self.rank not in after:
            return None
        receiver = after.index(self.rank)
        senders = sorted((k for r, k in pairs if r == receiver), key=lambda k: before[k])
        landed = self.land(transfer, receiver, self._blocks(received, arrival, receiver, senders), device)
        there = self.placed(transfer.after, receiver, sets, prefix)
        return there.box([landed], transfer.landing, transfer.target, transfer.shape, 0)[0]

    def beside(self, mesh: Mesh, part: int, sets: Sets, prefix: str) -> HorovodBoxer:
        """A boxer for another part, in the same function; prefixes tell their names apart."""
        other = HorovodBoxer(self.writer, mesh, part, self.devices[0], prefix, "", sets)
        other._guard, other._numbers, other.gate = self._guard, self._numbers, self.gate
        return other

    def placed(self, mesh: Mesh, part: int, sets: Sets = WORLD, prefix: str = "") -> HorovodBoxer:
        """A boxer for this process on another mesh, which is finished together with this one."""
        self._others.append(self.beside(mesh, part, sets, prefix or self._name("placed")))
        return self._others[-1]

    def finish(self) -> list[str]:
        for (_, reduction, _, number), sums in sorted(self._sums.items()):
            self._write("HorovodGroupedAllreduce", sums.inputs, sums.name, number, reduce_op=reduction)
        self._sums = {}
        return [*self.ran, *(name for other in self._others for name in other.finish())]

    def all_max(self, ref: Ref, shape: tuple[int, ...], name: str) -> Ref:
        """The elementwise maximum over ranks, under a name of the caller's."""
        return self._write("HorovodAllreduce", [self._guarded(ref, shape)], name, EVERYBODY, reduce_op=MAX)[0]

    def _all_reduce(self, ref: Ref, source: Sbp, shape: tuple[int, ...], depth: int, number: int) -> Ref:
        dtype = self.writer.dtypes[ref]
        if dtype in _COMPLEX:
            real = self._add("Bitcast", [ref], type=_COMPLEX[dtype])
            return self._add("Bitcast", [self._all_reduce(real, source, (*shape, 2), depth, number)], type=dtype)
        if dtype in _ADDED_AS:
            wide = self._add("Cast", [ref], DstT=_ADDED_AS[dtype])
            return self._add("Cast", [self._all_reduce(wide, source, shape, depth, number)], DstT=dtype)
        if source.kind != "P" and dtype.startswith("float"):
            return self._extreme(ref, source, shape, depth, number)
        return self._grouped(ref, source, shape, depth, number)

    def _extreme(self, ref: Ref, source: Sbp, shape: tuple[int, ...], depth: int, number: int) -> Ref:
        """A maximum or minimum in which a NaN of any rank survives, as on one device; Horovod's loses it.

        Whether there is one travels beside the values, in the same message.
        """
        dtype, device = self.writer.dtypes[ref], self.devices[0]
        last, sign = (float("-inf"), 1.0) if source.kind == "Pmax" else (float("inf"), -1.0)
        nan = self._add("IsNan", [ref])
        clean = self._add("SelectV2", [nan, self.writer.const(last, dtype, device), ref])
        flag = self._add("Mul", [self._add("Cast", [nan], DstT=dtype), self.writer.const(sign, dtype, device)])
        whole, flags = (self._grouped(part, source, shape, depth, number) for part in (clean, flag))
        anywhere = self._add("NotEqual", [flags, self.writer.const(0.0, dtype, device)])
        return self._add("SelectV2", [anywhere, self.writer.const(float("nan"), dtype, device), whole])

    def _grouped(self, ref: Ref, source: Sbp, shape: tuple[int, ...], depth: int, number: int) -> Ref:
        dtype = self.writer.dtypes[ref]
        key = (dtype, _REDUCTIONS[source.kind], depth, number)
        sums = self._sums.get(key)
        if sums is None or sums.nbytes >= GROUP_BYTES:
            if sums is not None:
                self._write("HorovodGroupedAllreduce", sums.inputs, sums.name, number, reduce_op=key[1])
            sums = self._sums[key] = _Sums(self._name("all_reduce"))
        sums.inputs.append(self._guarded(ref if shape else self._flat(ref), shape or (1,)))
        sums.nbytes += layout_bytes(shape, dtype)
        made = self.writer.declare(output_ref(sums.name, "sum", len(sums.inputs) - 1), dtype)
        return made if shape else self._add("Reshape", [made, self.writer.const([], "int32", self.devices[0])])

    def _gather(self, group: Group, ref: Ref, source: Sbp) -> Ref:
        local, number = group.local_shape(source, group.positions[0]), self.sets.along[group.number]
        if source.dim == 0 and self._by_rank(group.members) == list(group.members):
            return self._shaped(self._all_gather(ref, local, number), group.shape)
        held = (*group.around[: group.number], source, *group.around[group.number + 1 :])
        exchange = Exchange(self.mesh, held, self.mesh, group.around, group.logical, group.number)
        return self._unpack(self._all_gather(self._flat(ref), [prod(local)], number), exchange)

    def _all_gather(self, ref: Ref, shape: Sequence[int], number: int) -> Ref:
        """What all of a set have of a tensor, one after another along dim 0; -1 in the own shape for all there is."""
        return self._moved(ref, shape, lambda moved: self._collective("HorovodAllgather", [moved], number)[0])

    def _filled(self, ref: Ref, missing: Ref, shape: tuple[int, ...]) -> Ref:
        """A tensor with so many rows of zeros behind its own, which makes a shape."""
        device = self.devices[0]
        zero = self.writer.const(0, "int32", device)
        ends = self._add("Pack", [zero, missing, *[zero] * (2 * len(shape) - 2)], axis=0)
        pads = self._add("Reshape", [ends, self.writer.const([len(shape), 2], "int32", device)])
        return self._shaped(self._add("Pad", [ref, pads]), shape)

    def _by_rank(self, parts: Iterable[int]) -> list[int]:
        """Parts in the order of their ranks, which is that of whatever Horovod gives back."""
        return sorted(parts, key=self.mesh.device)

    def _unpack(self, buffer: Ref, exchange: Exchange) -> Ref:
        """One tensor from its senders' blocks, which lie in a flat buffer in the order of their ranks."""
        part = self.parts[0]
        blocks = self._blocks(buffer, exchange, part, self._by_rank(exchange.senders(part)))
        return self.assemble(exchange, part, blocks, self.devices[0])

    def _blocks(self, buffer: Ref, exchange: Exchange, receiver: int, senders: Sequence[int]) -> dict[int, Ref]:
        """What each sender sent, out of a flat buffer in which it lies one after another."""
        device, offset = self.devices[0], 0
        blocks: dict[int, Ref] = {}
        for sender in senders:
            lengths = [length for _, length in exchange.block(sender, receiver)]
            piece = self.slice(buffer, [(offset, prod(lengths))], device)
            blocks[sender] = self._add("Reshape", [piece, self.writer.const(lengths, "int32", device)])
            offset += prod(lengths)
        return blocks

    def _moved(self, ref: Ref, shape: Sequence[int], move: Callable[[Ref], Ref]) -> Ref:
        """Moves a tensor in the bits of a type that Horovod takes."""
        dtype = self.writer.dtypes[ref]
        if dtype == "string":
            raise NotImplementedError(
                "strings cannot be moved between processes, and this step needs a split tensor of strings whole. Pass "
                "the whole batch on every rank (inputs='global', no distribute_dataset), or make numbers of the strings"
            )
        if dtype not in MOVED_AS:
            return move(self._guarded(ref, shape))
        if dtype == "complex128":
            raise NotImplementedError("complex128 tensors are only summed, not moved, between processes yet")
        bits = self._add("Bitcast", [ref], type=MOVED_AS[dtype])
        return self._add("Bitcast", [move(self._guarded(bits, shape))], type=dtype)

    def _all_to_all(self, ref: Ref | None, dtype: str, sent: Sequence[Pieces | None], number: int) -> Ref:
        """Sends pieces of a tensor, one to each rank of a set; gives what comes, flat, by rank.

        Args:
          ref: the tensor, of type `dtype`; None where there is nothing to send.
          sent: for each rank the piece that it gets; None for those that get nothing.
        """
        device = self.devices[0]
        blocks = [
            self._flat(self.slice(ref, pieces, device)) for pieces in sent if ref is not None and pieces is not None
        ]
        buffer = self.join(blocks, 0, device) if blocks else self.writer.const([], dtype, device)
        counts = [0 if pieces is None else prod(length for _, length in pieces) for pieces in sent]
        splits = self.writer.const(counts, "int32", device)
        return self._moved(
            buffer, [sum(counts)], lambda ref: self._collective("HorovodAlltoall", [ref, splits], number)[0]
        )

    def _collective(self, type: str, inputs: list[Ref], number: int, **attrs: int) -> list[Ref]:
        return self._write(type, inputs, self._name(type.removeprefix("Horovod").lower()), number, **attrs)

    def _write(self, type: str, inputs: list[Ref], name: str, number: int, **attrs: int) -> list[Ref]:
        scales = {"prescale_factor": 1.0, "postscale_factor": 1.0} if "reduce_op" in attrs else {}
        made = self.writer.add(
            type,
            inputs,
            name=name,
            device=self.devices[0],
            controls=self.gate,
            ignore_name_scope=True,
            process_set_id=number,
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

    def _add(self, type: str, inputs: list[Ref], /, **attrs: Any) -> Ref:
        return self.writer.add(type, inputs, device=self.devices[0], **attrs)[0]

    def _name(self, kind: str) -> str:
        self._count += 1
        return f"{self.prefix}_{kind}_{self._count}"
