"""Micro-batches in turn: in one function, what begins a micro-batch waits for what ends the one before.

Without that TensorFlow would run all at once, and keep the activations of all.

     begin 0 ─▶ ... ─▶ sum 0 ─┐         ┌─▶ begin 1 ─▶ ... ─▶ sum 1 ─┐
                              └─────────┘                            └─▶ ...

What ends a micro-batch may need something of all of them, a metric's maximum say: no later one waits for that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from whaleish.writer import FunctionWriter, Ref


class Turns:
    """Begins and ends of the micro-batches that a function is written with."""

    def __init__(self) -> None:
        self._begins: dict[int, list[str]] = {}
        self._ends: dict[int, list[str]] = {}

    def begin(self, turn: int, ref: Ref) -> None:
        """Notes a tensor that a micro-batch starts from: its own rows of a whole batch."""
        self._begins.setdefault(turn, []).append(ref.split(":")[0])

    def end(self, turn: int, ref: Ref) -> None:
        """Notes a tensor in which what came of a micro-batch has been added to what came of those before."""
        self._ends.setdefault(turn, []).append(ref.split(":")[0])

    def write(self, writer: FunctionWriter) -> None:
        """Makes each begin wait for the ends of the turn before, but for those that need something of this turn."""
        if not self._begins:
            return
        nodes = {node.name: node for node in writer.function_def.node_def}
        readers: dict[str, list[str]] = {}
        for name, node in nodes.items():
            for text in node.input:
                readers.setdefault(text.removeprefix("^").partition(":")[0], []).append(name)
        for turn, begins in sorted(self._begins.items()):
            starting = [name for name in dict.fromkeys(begins) if name in nodes]
            later = _reached(starting, readers)
            ends = dict.fromkeys(self._ends.get(turn - 1, ()))
            earlier = [name for name in ends if name in nodes and name not in later]
            for name in starting:
                nodes[name].input.extend(f"^{end}" for end in earlier)
            for end in earlier:
                readers.setdefault(end, []).extend(starting)


def _reached(names: Iterable[str], readers: Mapping[str, Sequence[str]]) -> set[str]:
    """Nodes, and all that depends on them."""
    found = set(names)
    todo = list(found)
    while todo:
        new = [name for name in readers.get(todo.pop(), ()) if name not in found]
        found.update(new)
        todo += new
    return found
