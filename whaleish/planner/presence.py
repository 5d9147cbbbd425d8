"""Which stages have which tensors, and how much it costs to send them to another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable

from whaleish.graph import LogicalGraph, layout_bytes

_NAMES = frozenset(["Identity", "PreventGradient", "StopGradient"])
_IMMOVABLE = 1 << 60


class Presence:
    """The tensors that units on the stages make or read.

    Args:
      immovable: tensors that count as more than anything: the batch, and what is made of variables alone. A weight
        may be small against what it is applied to, as that of a convolution is, and were it to move, so would all the
        work that reads it.
    """

    def __init__(self, graph: LogicalGraph, immovable: Collection[int]) -> None:
        self._graph, self._immovable = graph, immovable
        self._there: dict[int, Counter[int]] = {}  # tensor -> stage -> how many units make or read it there
        self._same = _same(graph)

    def note(self, tensors: Iterable[int], stage: int, count: int = 1) -> None:
        """A unit on a stage, or -1 of them, makes or reads these."""
        for tensor in tensors:
            self._there.setdefault(tensor, Counter())[stage] += count

    def has(self, stage: int, tensor: int, own: int | None = None) -> bool:
        """Whether a stage has a tensor, or what it is another name of; `own` is where the asking unit counts as one."""
        source = self._same.get(tensor, tensor)
        there = self._there.get(tensor, Counter())[stage] - (stage == own)
        return there > 0 or (source != tensor and self._there.get(source, Counter())[stage] > 0)

    def missing(self, tensors: Iterable[int], stage: int, own: int | None = None) -> int:
        """Bytes of tensors that a stage does not have."""
        return sum(self.nbytes(tensor) for tensor in tensors if not self.has(stage, tensor, own))

    def nbytes(self, tensor: int) -> int:
        """Of a whole tensor; a little for what has no fixed size."""
        spec = self._graph.tensors[tensor]
        if tensor in self._immovable or spec.dtype == "variant":  # lists cannot be sent: what is in them is
            return _IMMOVABLE
        return layout_bytes(spec.shape or (), spec.dtype) or 8


def _same(graph: LogicalGraph) -> dict[int, int]:
    """Tensors that are others under another name -> what they are."""
    found: dict[int, int] = {}
    for op in graph.ops:
        if op.type in _NAMES:
            found[op.outputs[0]] = found.get(op.inputs[0], op.inputs[0])
    return found
