"""Micro-batches in turn: in one function, what begins a micro-batch waits for what ends the one before.

Without that TensorFlow would run all at once, and keep the activations of all.

     begin 0 ─▶ ... ─▶ sum 0 ─┐         ┌─▶ begin 1 ─▶ ... ─▶ sum 1 ─┐
                              └─────────┘                            └─▶ ...
"""

from __future__ import annotations

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
        """Makes each begin wait for the ends of the turn before."""
        nodes = {node.name: node for node in writer.function_def.node_def}
        for turn, begins in self._begins.items():
            earlier = [f"^{name}" for name in dict.fromkeys(self._ends.get(turn - 1, ())) if name in nodes]
            for name in dict.fromkeys(begins):
                if name in nodes:
                    nodes[name].input.extend(earlier)
