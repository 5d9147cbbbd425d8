"""Inlining: calls of functions are replaced by the bodies of the functions, recursively.

What a call means is kept: a body op that may see or change something outside waits for what the call waited for
(through a `NoOp` named begin), and what waited for the call waits for everything that the body runs (through one named
end). Loops and conditions are written out by `control.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import tensorflow as tf

from whaleish.capture import control, tf_private
from whaleish.capture.convert import scope_keys
from whaleish.capture.flat import Flat, ScopeKey, in_order, node_of
from whaleish.graph import Region

_CALLS = ("PartitionedCall", "StatefulPartitionedCall")


def inline(flat: Flat) -> Flat:
    """The same step without calls, and with the bodies of loops and conditions; `flat` itself where there are none."""
    library = {function.signature.name: function for function in flat.library.library.function}
    if not any(_callee(node, library) or node.op in control.TYPES for node in flat.nodes):
        return flat
    return _Inliner(flat, library).run()


def _callee(node: tf.compat.v1.NodeDef, library: dict[str, tf.compat.v1.NodeDef]) -> str | None:
    """Name of the function that a node calls, if it is a call."""
    name = node.attr["f"].func.name if node.op in _CALLS else node.op
    return name if name in library else None


@dataclass
class _Frame:
    """A body that is being inlined, or the step itself.

    Attributes:
      region: number of the body of a loop or condition that it is in.
      function: the library function; "" for the step.
      nodes: its nodes by name; prefix: what their names get in front.
      arguments: argument -> tensor of the flat graph; begin: what ops with effects wait for, or None.
      outputs: call in this body -> its output tensors; ends: call -> the node that stands for its end.
      names: node -> its name in the flat graph.
    """

    function: str
    nodes: dict[str, tf.compat.v1.NodeDef]
    prefix: str = ""
    arguments: dict[str, str] = field(default_factory=dict)
    begin: str | None = None
    scopes: tuple[ScopeKey, ...] = ()
    call: int = 0
    backward: bool = False
    region: int = 0
    names: dict[str, str] = field(default_factory=dict)
    outputs: dict[str, list[str]] = field(default_factory=dict)
    ends: dict[str, str] = field(default_factory=dict)


class _Inliner:
    def __init__(self, flat: Flat, library: dict) -> None:
        self.flat, self.library = flat, library
        self.made = replace(flat, nodes=[], scopes={}, calls={}, backward=set(), origins={}, region_of={}, regions=[])
        self.made.regions.append(Region())
        self.used = {node.name for node in flat.nodes}
        self.calls = 0

    def run(self) -> Flat:
        step = _Frame("", {node.name: node for node in self.flat.nodes})
        for node in self.flat.nodes:
            self._place(node, step)
        made = self.made
        made.outputs = [self._tensor(text, step) for text in self.flat.outputs]
        made.roots = [self._control(name, step) for name in self.flat.roots]
        return made

    def _place(self, node: tf.compat.v1.NodeDef, frame: _Frame) -> None:
        """Adds a node of a body, or in the place of a call the body of its function."""
        inputs = [self._tensor(text, frame) for text in node.input if text[0] != "^"]
        controls = [self._control(text[1:], frame) for text in node.input if text[0] == "^"]
        callee = _callee(node, self.library)
        if frame.begin is not None and (callee or tf_private.is_stateful(node.op)):
            controls.append(frame.begin)
        if callee:
            self._call(node, frame, self.library[callee], inputs, controls)
            return
        if control.is_divisible(node, self.library):
            control.write_out(self, node, frame, inputs, controls)
            return
        added = self.add(node.op, node.name if not frame.function else f"{frame.prefix}/{node.name}", frame)
        name = added.name
        added.CopyFrom(node)
        added.name = name
        del added.input[:]
        added.input.extend([*inputs, *("^" + control for control in dict.fromkeys(controls))])
        added.attr.pop("_class", None)  # names nodes of the body
        frame.names[node.name] = name
        if frame.function:
            self.made.origins[name] = (frame.function, node.name)

    def _call(self, node, frame: _Frame, function, inputs: list[str], controls: list[str]) -> None:
        inner = self.enter(node, frame, function, inputs)
        if controls:
            inner.begin = self._no_op(inner, "begin", controls)
        frame.outputs[node.name], run = self.write_body(function, inner)
        after = run or [node_of(text) for text in frame.outputs[node.name]] + ([inner.begin] if inner.begin else [])
        frame.ends[node.name] = self._no_op(inner, "end", after)

    def enter(self, node, frame: _Frame, function, inputs: Sequence[str], suffix: str = "") -> _Frame:
        """A frame for the body of a function that a node refers to."""
        self.calls += 1
        arguments = [argument.name for argument in function.signature.input_arg]
        return _Frame(
            function.signature.name,
            {body.name: body for body in function.node_def},
            (f"{frame.prefix}/{node.name}" if frame.prefix else node.name) + suffix,
            dict(zip(arguments, inputs, strict=True)),
            scopes=scope_keys(node, frame.scopes, frame.call),
            call=self.calls,
            backward=frame.backward or "__backward_" in function.signature.name,
            region=frame.region,
        )

    def write_body(self, function, inner: _Frame) -> tuple[list[str], list[str]]:
        """Places a function's nodes; returns its results, and the nodes that it runs whether they are read or not."""
        for body in in_order(function.node_def):
            self._place(body, inner)
        results = [self._tensor(function.ret[result.name], inner) for result in function.signature.output_arg]
        return results, [self._control(name, inner) for name in sorted(set(function.control_ret.values()))]

    def _no_op(self, frame: _Frame, name: str, controls: Iterable[str]) -> str:
        node = self.add("NoOp", f"{frame.prefix}/{name}", frame)
        node.input.extend("^" + control for control in dict.fromkeys(controls))
        return node.name

    def add(self, op: str, wanted: str, frame: _Frame) -> tf.compat.v1.NodeDef:
        """A new node of a body, under the wanted name or one like it."""
        name, count = wanted, 0
        while name in self.used and (frame.function or op in control.MADE):
            count += 1
            name = f"{wanted}_{count}"
        self.used.add(name)
        node = tf.compat.v1.NodeDef(name=name, op=op)
        self.made.nodes.append(node)
        if frame.region:
            self.made.region_of[name] = frame.region
        if frame.function:
            self.made.calls[name] = frame.call
            self.made.scopes[name] = frame.scopes
            if frame.backward:
                self.made.backward.add(name)
        return node

    def _tensor(self, text: str, frame: _Frame) -> str:
        """The flat graph's name of a tensor of a body: "argument", or "node:output name:number" in its own terms."""
        name, *place = text.split(":")
        if name in frame.arguments:
            return frame.arguments[name]
        slot = int(place[-1]) if place else 0
        if len(place) == 2:
            slot += tf_private.output_offset(frame.nodes[name], place[0], self.library)
        return frame.outputs[name][slot] if name in frame.outputs else f"{frame.names[name]}:{slot}"

    def _control(self, name: str, frame: _Frame) -> str:
        if name in frame.arguments:
            return node_of(frame.arguments[name])
        return frame.ends.get(name) or frame.names[name]
