"""Emission of loops and conditions: each body is a function of its own, which all parts of a process share.

What a body reads from outside becomes an argument of it. What does not change in a loop is boxed once, before it; what
only one branch of a condition reads in some layout is boxed in that branch, and so not at all where it is not taken.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from whaleish.boxing.boxer import Boxer
from whaleish.graph import Op
from whaleish.planner.plan import Choice
from whaleish.rewrite.homes import find_homes
from whaleish.rules.control import CONDITION, CONDITION_RESULT, LOOP, LOOP_VARIABLE, NEXT_VALUE
from whaleish.sbp import Layout, is_whole
from whaleish.writer import FunctionWriter, Ref, output_ref

if TYPE_CHECKING:
    from whaleish.rewrite.emit import Emitter

Shape = tuple[int, ...] | None


@dataclass(eq=False)
class Frame:
    """A function that is being written: the step, or a body.

    Attributes:
      held: (tensor, layout) -> the parts' refs. own: tensors that are made here; others come from the parent.
      must_run: nodes that run though nothing reads them.
      depth: of what has been written here: the longest chain of collectives.
      region: its number. bodies: those of the same loop or condition; place: which of them this one is.
      op_of: node -> the op that it is part of.
      following: number of a carried value -> the parts' refs of what it becomes.
    """

    writer: FunctionWriter
    parent: Frame | None = None
    bodies: _Bodies | None = None
    place: int = 0
    region: int = 0
    boxer: Boxer = field(init=False)
    held: dict[tuple[int, Layout], list[Ref]] = field(default_factory=dict)
    own: set[int] = field(default_factory=set)
    must_run: list[str] = field(default_factory=list)
    depth: int = 0
    op_of: dict[str, int] = field(default_factory=dict)
    following: dict[int, list[Ref]] = field(default_factory=dict)

    def finish(self) -> list[str]:
        """Writes what was held back; returns the nodes that must run."""
        self.must_run += self.boxer.finish()
        self.must_run = list(dict.fromkeys(self.must_run))
        return self.must_run


class _Bodies:
    """The bodies of one loop or condition, which have the same arguments.

    Attributes:
      given: what the function round them gives as arguments. names: for each argument, its name in each body.
      places: number of a carried value -> the places of its parts among the arguments.
    """

    def __init__(self, parent: Frame) -> None:
        self.frames: list[Frame] = []
        self.parent = parent
        self.given: list[Ref] = []
        self.places: dict[int, list[int]] = {}
        self.names: list[list[Ref]] = []
        self._known: dict[Ref, int] = {}

    def bring(self, ref: Ref, shape: Shape = (), variable_dtype: str | None = None, *, place: int) -> Ref:
        """The argument of body number `place` that stands for a ref of the parent."""
        if ref not in self._known:
            self._known[ref] = self.add(ref, shape, variable_dtype)
        return self.names[self._known[ref]][place]

    def add(self, ref: Ref, shape: Shape, variable_dtype: str | None = None) -> int:
        """The place of a new argument, which begins as a ref of the parent."""
        dtype = self.parent.writer.dtypes[ref]
        self.given.append(ref)
        self.names.append([f.writer.argument("argument", dtype, shape, variable_dtype) for f in self.frames])
        return len(self.given) - 1


class ControlWriter:
    """Writes what joins the bodies to the function round them, for an emitter."""

    def __init__(self, emitter: Emitter) -> None:
        self.emitter, self.graph, self.plan = emitter, emitter.graph, emitter.plan
        self._frames = {0: emitter.step}
        self._together: dict[int, tuple[int, ...]] = {}  # region -> the regions of its loop or condition
        self._results: dict[tuple[int, ...], list[int]] = {}  # regions -> the ops of a condition's results
        self._dtypes = {v.handle: v.dtype for v in self.graph.variables}
        self._names: dict[tuple[int, ...], str] = {}  # regions -> the node that runs them
        for index, op in enumerate(self.graph.ops):
            if op.type in (CONDITION, LOOP):
                self._together.update(dict.fromkeys(op.attrs["regions"], op.attrs["regions"]))
            elif op.type == CONDITION_RESULT:
                self._results.setdefault(op.attrs["regions"], []).append(index)
        self._homes = find_homes(self.graph, self.plan, emitter.moves)

    def comes_from_outside(self, tensor: int, layout: Layout, frame: Frame) -> bool:
        """Whether a tensor in a layout that a frame does not have yet is boxed, or made, outside of it."""
        if frame.parent is None or tensor in frame.own:
            return False
        return (tensor, layout) not in self.emitter.moves or self._homes[tensor, layout] != frame.region

    def frame(self, region: int) -> Frame:
        """The function in which a region's ops are written."""
        if region not in self._frames:
            together = self._together[region]
            parent = self.frame(self.graph.regions[region].parent)
            bodies = _Bodies(parent)
            for place, number in enumerate(together):
                frame = self._frames[number] = Frame(FunctionWriter(), parent, bodies, place, number)
                frame.boxer = parent.boxer.inside(frame.writer, number, functools.partial(bodies.bring, place=place))
                bodies.frames.append(frame)
        return self._frames[region]

    def brought(self, tensor: int, layout: Layout, frame: Frame) -> list[Ref]:
        """A tensor that is made outside, as arguments of a body."""
        assert frame.parent is not None
        assert frame.bodies is not None
        refs = self.emitter.refs(tensor, layout, frame.parent)
        shapes, dtype = self._shapes(tensor, layout), self._dtypes.get(tensor)
        return [frame.bodies.bring(r, shape, dtype, place=frame.place) for r, shape in zip(refs, shapes, strict=True)]

    def write(self, index: int, controls: list[str]) -> list[list[str]]:
        """Writes an op of `rules/control.py`; returns the nodes that it was written as, for each part."""
        op, choice = self.graph.ops[index], self.plan.choices[index]
        frame = self.frame(op.region)
        nodes: list[str] = []
        if op.type == LOOP_VARIABLE:
            self._variable(op, *choice.outputs)
        elif op.type == NEXT_VALUE:
            frame.following[op.attrs["variable"]] = self.emitter.refs(op.inputs[1], choice.inputs[1], frame)
        elif op.type in (CONDITION, LOOP):
            nodes = [self._node(op, choice, frame, controls)]
        else:
            frame.held[op.outputs[0], choice.outputs[0]] = self._outputs(index, op)
        return [nodes] * len(self.emitter.parts)

    def _variable(self, op: Op, layout: Layout) -> None:
        """Arguments of the body and of the test, which begin as the first value."""
        bodies = self._bodies(op)
        refs = self.emitter.refs(op.inputs[0], layout, bodies.parent)
        shapes = self._shapes(op.outputs[0], layout)
        if is_whole(layout):
            places = [bodies.add(refs[0], shapes[0])] * len(refs)
        else:
            places = [bodies.add(ref, shape) for ref, shape in zip(refs, shapes, strict=True)]
        bodies.places[op.attrs["variable"]] = places
        for frame in bodies.frames:
            frame.held[op.outputs[0], layout] = [bodies.names[place][frame.place] for place in places]
            frame.own.add(op.outputs[0])

    def _node(self, op: Op, choice: Choice, frame: Frame, controls: list[str]) -> str:
        """The node that runs the bodies."""
        bodies, regions = self._bodies(op), op.attrs["regions"]
        write = self._loop if op.type == LOOP else self._condition
        type, first, attrs = write(op, choice, bodies)
        name = self._names[regions] = frame.writer.fresh(op.name)
        frame.writer.add(
            type,
            [*first, *bodies.given],
            name=name,
            controls=[*frame.boxer.gate, *controls],
            _lower_using_switch_merge=True,
            **attrs,
        )
        if any(each.must_run for each in bodies.frames):
            frame.must_run.append(name)
        return name

    def _condition(self, op: Op, choice: Choice, bodies: _Bodies) -> tuple[str, list[Ref], dict[str, Any]]:
        which = self.emitter.refs(op.inputs[0], choice.inputs[0], bodies.parent)[:1]
        results: list[list[Ref]] = [[] for _ in bodies.frames]
        for index in self._results.get(op.attrs["regions"], ()):
            made, layouts = self.graph.ops[index], self.plan.choices[index].inputs
            for refs, frame, tensor, layout in zip(results, bodies.frames, made.inputs, layouts, strict=True):
                parts = self.emitter.refs(tensor, layout, frame)
                refs += parts[:1] if is_whole(layout) else parts
        functions = [self._finish(frame, refs) for frame, refs in zip(bodies.frames, results, strict=True)]
        types = {
            "Tin": [bodies.parent.writer.dtypes[ref] for ref in bodies.given],
            "Tout": [bodies.frames[0].writer.dtypes[ref] for ref in results[0]],
        }
        if op.attrs["cases"]:
            return "Case", which, types | {"branches": functions}
        return "If", which, types | {"then_branch": functions[0], "else_branch": functions[1]}

    def _loop(self, op: Op, choice: Choice, bodies: _Bodies) -> tuple[str, list[Ref], dict[str, Any]]:
        test, body = bodies.frames
        goes_on = self.emitter.refs(op.inputs[0], choice.inputs[0], test)[:1]
        following: dict[int, Ref] = {}
        for number, places in bodies.places.items():
            following.update(zip(places, body.following[number], strict=True))
        # Arguments are complete now: what the test or the body alone reads goes round as it is.
        results = [following.get(place, names[body.place]) for place, names in enumerate(bodies.names)]
        # The names of Horovod's collectives may not be in flight twice.
        alone = len(self.emitter.parts) == self.emitter.mesh.size
        return (
            "While",
            [],
            {
                "cond": self._finish(test, goes_on),
                "body": self._finish(body, results),
                "parallel_iterations": op.attrs["parallel_iterations"] if alone else 1,
                "T": [bodies.parent.writer.dtypes[ref] for ref in bodies.given],
            },
        )

    def _finish(self, frame: Frame, results: Sequence[Ref]) -> str:
        """Ends a body; returns the function's name. Its results wait for all that must run."""
        run = frame.finish()
        refs = [frame.writer.add("Identity", [ref], controls=run)[0] for ref in results]
        name = f"__whaleish_body_{next(_serial)}"
        self.emitter.emitted.op_of[name] = frame.op_of
        self.emitter.emitted.bodies.append(frame.writer.finish(name, refs, run))
        return name

    def _outputs(self, index: int, op: Op) -> list[Ref]:
        """A loop's or condition's result, as outputs of the node that runs the bodies."""
        regions, parts = op.attrs["regions"], len(self.emitter.parts)
        name, writer = self._names[regions], self.frame(op.region).writer
        (layout,) = self.plan.choices[index].outputs
        count = 1 if is_whole(layout) else parts
        if op.type == CONDITION_RESULT:
            first = 0
            for other in self._results[regions]:
                if other == index:
                    break
                first += 1 if is_whole(*self.plan.choices[other].outputs) else parts
            places = list(range(first, first + count))
        else:
            places = self._bodies(op).places[op.attrs["variable"]][:count]
        dtype = self.graph.tensors[op.outputs[0]].dtype
        refs = [writer.declare(output_ref(name, "output", place), dtype) for place in places]
        return refs * parts if count == 1 and parts > 1 else refs

    def _shapes(self, tensor: int, layout: Layout) -> list[Shape]:
        """The parts' shapes of a tensor, for arguments."""
        spec, parts = self.graph.tensors[tensor], self.emitter.parts
        if spec.dtype == "variant":
            return [()] * len(parts)
        if spec.shape is None:
            return [None] * len(parts)
        return [self.emitter.mesh.local_shape(spec.shape, layout, part) for part in parts]

    def _bodies(self, op: Op) -> _Bodies:
        """The bodies that an op joins to the function round them."""
        bodies = self.frame(op.attrs["regions"][0]).bodies
        assert bodies is not None
        return bodies


_serial = itertools.count()
"""Bodies of different programs need different names."""
