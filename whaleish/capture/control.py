"""Writes out loops and conditions: the ops of their bodies become ops of the step, each marked with its region.

So every pass over the graph, and the planner, see a body's ops as they see others. The ops that join regions, and what
they mean, are those of `rules/control.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from whaleish import scopes
from whaleish.graph import Region
from whaleish.rules.control import CONDITION, CONDITION_RESULT, CONTROL, LOOP, LOOP_RESULT, LOOP_VARIABLE, NEXT_VALUE

_CONDITIONS = ("If", "StatelessIf", "Case", "StatelessCase")
_LOOPS = ("While", "StatelessWhile")
TYPES = frozenset((*_CONDITIONS, *_LOOPS))
MADE = CONTROL
"""The types of the nodes that are made here."""

Node = tf.compat.v1.NodeDef


def is_divisible(node: Node, library: Mapping[str, Any]) -> bool:
    """Whether a node is a loop or condition that can be written out: none that hands resources from body to body."""
    if node.op in _LOOPS:
        body = library[node.attr["body"].func.name]
        arguments = zip(body.signature.input_arg, _sources(body), strict=True)
        return all(source == a.name for a, source in arguments if a.type == tf.resource.as_datatype_enum)
    return node.op in _CONDITIONS and tf.resource.as_datatype_enum not in node.attr["Tout"].list.type


def write_out(inliner: Any, node: Node, frame: Any, inputs: Sequence[str], controls: Sequence[str]) -> None:
    """Places a loop's or condition's bodies and what joins them, in place of the node, by an `inline._Inliner`."""
    writer = _Writer(inliner, node, frame)
    (writer.loop if node.op in _LOOPS else writer.condition)(inputs, controls)


def stand_in(node: Node) -> Node:
    """For a node that is made here, one that TensorFlow can infer the same shapes from."""
    if node.op in (LOOP, CONDITION, NEXT_VALUE):
        return Node(name=node.name, op="NoOp")
    result = Node(name=node.name, op="Merge" if node.op == CONDITION_RESULT else "Placeholder")
    dtype = node.attr["T"]
    if node.op == CONDITION_RESULT:
        result.input.extend(text for text in node.input if text[0] != "^")
        result.attr["T"].CopyFrom(dtype)
        result.attr["N"].i = len(result.input)
    else:
        result.attr["dtype"].CopyFrom(dtype)
        result.attr["shape"].CopyFrom(node.attr["shape"])
    return result


class _Writer:
    def __init__(self, inliner: Any, node: Node, frame: Any) -> None:
        self.inliner, self.node, self.frame = inliner, node, frame
        self.name = f"{frame.prefix}/{node.name}" if frame.prefix else node.name

    def condition(self, inputs: Sequence[str], controls: Sequence[str]) -> None:
        attr = self.node.attr
        names = [attr[name].func.name for name in ("then_branch", "else_branch") if name in attr]
        names = names or [branch.name for branch in attr["branches"].list.func]
        results, regions, run = [], [], list(controls)
        for number, name in enumerate(names):
            made, ran, region = self._body(name, inputs[1:], f"/branch_{number}")
            results.append(made)
            regions.append(region)
            run += ran
        anchor = self._add(
            CONDITION, "", inputs[:1], run, regions=regions, cases=len(names) if "branches" in attr else 0
        )
        self._results(
            anchor,
            [
                self._add(
                    CONDITION_RESULT, f"/result_{number}", values, [anchor], T=dtype, output=number, regions=regions
                )
                for number, (dtype, *values) in enumerate(zip(attr["Tout"].list.type, *results, strict=True))
            ],
        )

    def loop(self, inputs: Sequence[str], controls: Sequence[str]) -> None:
        attr, library = self.node.attr, self.inliner.library
        body = library[attr["body"].func.name]
        test_region, body_region = self._region(), self._region()
        regions = [test_region, body_region]
        values, shapes = list(inputs), attr["output_shapes"].list.shape
        carried = [
            n for n, (a, s) in enumerate(zip(body.signature.input_arg, _sources(body), strict=True)) if s != a.name
        ]
        unknown = tf.TensorShape(None).as_proto()
        shared = {
            number: {
                "T": attr["T"].list.type[number],
                "shape": shapes[number] if shapes else unknown,
                "variable": number,
                "regions": regions,
            }
            for number in carried
        }
        for number, attrs in shared.items():
            name = f"/variable_{number}"
            values[number] = self._add(LOOP_VARIABLE, name, [inputs[number]], [], region=body_region, **attrs) + ":0"
        (goes_on, *_), run, _ = self._body(attr["cond"].func.name, values, "/test", test_region)
        following, ran, _ = self._body(attr["body"].func.name, values, "/body", body_region)
        for number in carried:
            pair, name = [values[number], following[number]], f"/next_{number}"
            self._add(NEXT_VALUE, name, pair, [], region=body_region, variable=number, regions=regions)
        parallel = attr["parallel_iterations"].i or 10
        anchor = self._add(LOOP, "", [goes_on], [*controls, *run, *ran], regions=regions, parallel_iterations=parallel)
        results = list(values)
        for number, attrs in shared.items():
            results[number] = self._add(LOOP_RESULT, f"/result_{number}", [values[number]], [anchor], **attrs)
        self._results(anchor, results)

    def _results(self, anchor: str, results: Sequence[str]) -> None:
        self.frame.outputs[self.node.name] = [text if ":" in text else f"{text}:0" for text in results]
        self.frame.ends[self.node.name] = anchor

    def _region(self) -> int:
        self.inliner.made.regions.append(Region(self.frame.region))
        return len(self.inliner.made.regions) - 1

    def _body(
        self, name: str, values: Sequence[str], suffix: str, region: int | None = None
    ) -> tuple[list[str], list[str], int]:
        """Places a body; returns its results, the nodes that it runs in any case, and its region."""
        function = self.inliner.library[name]
        inner = self.inliner.enter(self.node, self.frame, function, values, suffix)
        inner.region = self._region() if region is None else region
        return *self.inliner.write_body(function, inner), inner.region

    def _add(
        self,
        op: str,
        suffix: str,
        inputs: Sequence[str],
        controls: Sequence[str],
        *,
        region: int | None = None,
        **attrs: Any,
    ) -> str:
        if not suffix:
            self.inliner.used.discard(self.name)  # the node whose place this one takes
        node = self.inliner.add(op, self.name + suffix, self.frame)
        self.inliner.made.origins[node.name] = (self.frame.function, self.node.name)
        if scopes.ATTRIBUTE in self.node.attr:
            node.attr[scopes.ATTRIBUTE].CopyFrom(self.node.attr[scopes.ATTRIBUTE])
        if region is not None:
            self.inliner.made.region_of[node.name] = region
        node.input.extend([*inputs, *("^" + control for control in dict.fromkeys(controls))])
        for key, value in attrs.items():
            if key == "T":
                node.attr[key].type = value
            elif key == "shape":
                node.attr[key].shape.CopyFrom(value)
            elif key == "regions":
                node.attr[key].list.i.extend(value)
            else:
                node.attr[key].i = value
        return node.name


def _sources(body: Any) -> list[str]:
    """For each result of a loop's body the argument that it is, or the node that makes it."""
    nodes = {node.name: node for node in body.node_def}
    found = []
    for result in body.signature.output_arg:
        text = body.ret[result.name]
        while (node := nodes.get(text.partition(":")[0])) is not None and node.op == "Identity":
            text = node.input[0]
        found.append(text)
    return found
