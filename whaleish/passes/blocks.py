"""Blocks: where the forward of a step can be cut, and the parts of it that repeat.

Cut is where a single activation goes on, as between the layers of most models: what lies between two such places is an
atom. Where the same atoms come again and again, as those of a transformer's layers do, each round is a block, and so is
what is before them and after. Else about as many blocks as the square root of the number of atoms are made, of equally
many bytes (Chen et al., 2016).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isqrt

from whaleish.graph import FORWARD, LogicalGraph, layout_bytes
from whaleish.rules.control import CONTROL

Atom = tuple[int, ...]
"""Ops of the forward, in order."""

_COVERED = 0.5
"""How much of the activations repeated blocks must make, to be worth more than an even cut."""


def find_blocks(graph: LogicalGraph) -> list[Atom]:
    """The blocks of a forward, from the first to the last: all of it."""
    atoms = find_atoms(graph)
    sizes = [_nbytes(graph, atom) for atom in atoms]
    start, period, count = find_rounds([_kind(graph, atom) for atom in atoms], sizes)
    end = start + period * count
    if sum(sizes[start:end]) >= _COVERED * sum(sizes) > 0:
        rounds = [atoms[first : first + period] for first in range(start, end, period)]
        return [joined(each) for each in (atoms[:start], *rounds, atoms[end:]) if each]
    return _evenly(atoms, sizes, isqrt(len(atoms)))


def find_atoms(graph: LogicalGraph) -> list[Atom]:
    """The ops of the forward between the places where a single activation goes on."""
    forward = [index for index, op in enumerate(graph.ops) if op.phase == FORWARD]
    activations = _activations(graph)
    ends: dict[int, int] = {}  # activation -> the last op of the forward that reads it
    for index in forward:
        for tensor in graph.ops[index].inputs:
            if tensor in activations:
                ends[tensor] = index
    atoms: list[Atom] = []
    ops: list[int] = []
    going: set[int] = set()
    for index in forward:
        op = graph.ops[index]
        ops.append(index)
        going |= {tensor for tensor in op.outputs if ends.get(tensor, -1) > index}
        going -= {tensor for tensor in op.inputs if ends.get(tensor) == index}
        whole = not op.region and op.type not in CONTROL
        if whole and len(going) == 1 and going == {t for t in op.outputs if t in going}:
            atoms.append(tuple(ops))
            ops = []
    return [*atoms, tuple(ops)] if ops else atoms


def find_rounds(kinds: Sequence[object], sizes: Sequence[int]) -> tuple[int, int, int]:
    """(first, how many to a round, how many rounds) of what is repeated, with the most bytes in it; then the shortest.

    >>> find_rounds("xababaz", [1] * 7)
    (1, 2, 2)
    """
    best, found = 0, (0, 1, 0)
    for period in range(1, len(kinds) // 2 + 1):
        start = 0
        while start + 2 * period <= len(kinds):
            same = 0
            while start + same + period < len(kinds) and kinds[start + same] == kinds[start + same + period]:
                same += 1
            rounds = same // period + 1
            held = sum(sizes[start : start + rounds * period])
            if rounds > 1 and held > best:
                best, found = held, (start, period, rounds)
            start += same + 1
    return found


def _activations(graph: LogicalGraph) -> set[int]:
    """What depends on the step's arguments and on trained variables."""
    given = set(graph.inputs)
    trained = {variable.handle for variable in graph.variables if variable.trainable}
    of_both: set[int] = set()
    for op in graph.ops:
        if op.phase != FORWARD:
            continue
        both = any(t in of_both for t in op.inputs)
        on_given, on_trained = (any(t in known for t in op.inputs) for known in (given, trained))
        given.update(op.outputs if on_given or both else ())
        trained.update(op.outputs if on_trained or both else ())
        of_both.update(op.outputs if both or (on_given and on_trained) else ())
    return of_both


def _kind(graph: LogicalGraph, atom: Atom) -> tuple[object, ...]:
    """What two atoms have in common that do the same."""
    return tuple(
        (op.type, tuple((graph.tensors[tensor].shape, graph.tensors[tensor].dtype) for tensor in op.outputs))
        for op in (graph.ops[index] for index in atom)
        if op.type not in ("Const", "Placeholder")
    )


def _nbytes(graph: LogicalGraph, atom: Atom) -> int:
    made = (graph.tensors[tensor] for index in atom for tensor in graph.ops[index].outputs)
    return sum(layout_bytes(spec.shape or (), spec.dtype) for spec in made if spec.dtype != "resource")


def _evenly(atoms: Sequence[Atom], sizes: Sequence[int], count: int) -> list[Atom]:
    """The atoms joined to so many blocks of about as many bytes."""
    total, made = sum(sizes), 0
    blocks: list[list[Atom]] = [[] for _ in range(count)]
    for atom, size in zip(atoms, sizes, strict=True):
        blocks[min(count - 1, made * count // max(1, total))].append(atom)
        made += size
    return [joined(block) for block in blocks if block]


def joined(atoms: Sequence[Atom]) -> Atom:
    """The ops of several, in order."""
    return tuple(index for atom in atoms for index in atom)
