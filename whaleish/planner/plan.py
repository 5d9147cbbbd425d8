"""Plans: which layout every tensor of a step has, as plain data that prints and parses back."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from whaleish.mesh import Axis, Mesh
from whaleish.planner.estimate import Estimate
from whaleish.sbp import Layout, format_layout, parse_layout
from whaleish.schedule import Schedule, make_schedule

_HEADER = "whaleish plan 1"


class Choice(NamedTuple):
    """How one op is carried out: the layouts it reads its inputs in, and those it leaves its outputs in.

    Attributes:
      expands: the axes on which it communicates inside, written out in primitive ops; as text `=0,1>`, or `=>` for the
        first axis alone.
    """

    inputs: tuple[Layout, ...]
    outputs: tuple[Layout, ...]
    expands: tuple[int, ...] = ()

    def __str__(self) -> str:
        axes = "" if self.expands == (0,) else ",".join(map(str, self.expands))
        arrow = f" ={axes}> " if self.expands else " -> "
        return _join(self.inputs) + arrow + _join(self.outputs)

    @classmethod
    def parse(cls, text: str) -> Choice:
        arrow = _ARROW.search(text)
        if arrow is None:
            raise ValueError("a choice has an arrow, ->, => or =0,1>")
        axes = tuple(map(int, arrow[1].split(","))) if arrow[1] else (0,) if arrow[0][1] == "=" else ()
        return cls(_split(text[: arrow.start()]), _split(text[arrow.end() :]), axes)


_ARROW = re.compile(r" (?:->|=([\d,]*)>) ")


def _join(layouts: Sequence[Layout]) -> str:
    return " ".join(map(format_layout, layouts)) or "."


def _split(text: str) -> tuple[Layout, ...]:
    return () if text.strip() == "." else tuple(map(parse_layout, text.split()))


@dataclass(frozen=True)
class Pipelining:
    """The stages of a plan.

    Attributes:
      meshes: of each stage. All have the same axes of time.
      stage_of: for each op of the graph its stage; a variable's is that of the op that stands for its handle.
      schedule: as `wh.pipeline` takes it; "" where stages take turns on the whole batch.
      recompute: whether the backward of a stage runs its forward again.
    """

    meshes: tuple[Mesh, ...]
    stage_of: tuple[int, ...]
    schedule: str = ""
    recompute: bool = False

    @cached_property
    def order(self) -> Schedule | None:
        """In which order devices go through stages and micro-batches; None where stages take turns."""
        if not self.schedule:
            return None
        return make_schedule(self.schedule, len(self.meshes), self.meshes[0].micro_batches)

    def lines(self) -> Iterator[str]:
        """The plan's lines about stages."""
        for stage, mesh in enumerate(self.meshes):
            ops = [index for index, own in enumerate(self.stage_of) if own == stage]
            yield f"stage {mesh.text()} on {_ranges(mesh.devices)} : {_ranges(ops) or '.'}"
        if self.schedule:
            yield f"schedule {self.schedule!r}" + (" recompute" if self.recompute else "")

    @classmethod
    def parse(cls, stages: Sequence[tuple[Mesh, list[int]]], schedule: tuple[str, bool]) -> Pipelining:
        """The inverse of `lines`, of what `_parse_stage` and `_parse_schedule` made of each."""
        stage_of = {op: stage for stage, (_, ops) in enumerate(stages) for op in ops}
        return cls(tuple(mesh for mesh, _ in stages), tuple(stage_of[op] for op in sorted(stage_of)), *schedule)


@dataclass(frozen=True)
class Plan:
    """The layouts of one captured step.

    Attributes:
      mesh: the devices and their axes; with stages, those of the first.
      graph: fingerprint of the graph that the plan is for.
      inputs: layout in which each argument tensor arrives.
      outputs: layout in which each result leaves the step.
      variables: (name, layout), in the graph's order.
      choices: one per op of the graph, on the mesh of its stage.
      pipelining: the stages; None for a step without.
      estimator: says what a plan would take for the graph that this one was made for; None of a plan that was parsed,
        loaded or pickled. It is no part of what a plan says.

    `str(plan)` writes each distinct choice once, with the ranges of op numbers that take it, and `Plan.parse` reads
    that back.
    """

    mesh: Mesh
    graph: str
    inputs: tuple[Layout, ...]
    outputs: tuple[Layout, ...]
    variables: tuple[tuple[str, Layout], ...]
    choices: tuple[Choice, ...]
    pipelining: Pipelining | None = None
    estimator: Callable[[Plan], Estimate] | None = field(default=None, compare=False, repr=False)

    def estimate(self) -> Estimate:
        """What the step would take on each device if it ran by this plan, without running it.

        Raises:
          ValueError: the plan does not know the step: it was parsed, loaded or pickled.
        """
        if self.estimator is None:
            raise ValueError(
                f"this plan is for graph {self.graph} and was parsed, loaded, pickled, or taken from a program, so it "
                "does not know that graph. Give it to its step, wh.function(step, plan=plan).plan_for(*args), which "
                "returns it with its graph, and estimate that"
            )
        return self.estimator(self)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "estimator": None}

    @property
    def devices(self) -> tuple[int, ...]:
        """All devices, in ascending order."""
        meshes = self.pipelining.meshes if self.pipelining else (self.mesh,)
        return tuple(sorted({device for mesh in meshes for device in mesh.devices}))

    def mesh_of(self, op: int) -> Mesh:
        """The mesh of the stage of an op."""
        return self.pipelining.meshes[self.pipelining.stage_of[op]] if self.pipelining else self.mesh

    def __str__(self) -> str:
        lines = [
            _HEADER,
            f"mesh {self.mesh.text()} on {_ranges(self.mesh.devices)}",
            f"graph {self.graph} of {len(self.choices)} ops",
            f"inputs {_join(self.inputs)}",
            f"outputs {_join(self.outputs)}",
        ]
        lines += self.pipelining.lines() if self.pipelining else ()
        lines += [f"variable {name} {format_layout(layout)}" for name, layout in self.variables]
        takers: dict[Choice, list[int]] = {}
        for index, choice in enumerate(self.choices):
            takers.setdefault(choice, []).append(index)
        lines += [f"ops {choice} : {_ranges(indices)}" for choice, indices in takers.items()]
        return "\n".join(lines) + "\n"

    @classmethod
    def parse(cls, text: str) -> Plan:
        """Reads what `str(plan)` wrote; raises ValueError naming the line that it cannot read."""
        fields: dict[str, Any] = {}
        variables: list[tuple[str, Layout]] = []
        choices: dict[int, Choice] = {}
        stages: list[tuple[Mesh, list[int]]] = []
        schedule = ("", False)
        lines = text.strip().splitlines()
        if not lines or lines[0] != _HEADER:
            found = lines[0] if lines else ""
            raise ValueError(f"this is not a plan: it begins with {found!r}, a plan with {_HEADER!r}")
        for number, line in enumerate(lines[1:], 2):
            word, _, rest = line.partition(" ")
            try:
                if word == "variable":
                    name, _, layout = rest.rpartition(" ")
                    variables.append((name, parse_layout(layout)))
                elif word == "ops":
                    choice_text, _, takers = rest.rpartition(" : ")
                    choices.update(dict.fromkeys(_parse_ranges(takers), Choice.parse(choice_text)))
                elif word == "stage":
                    stages.append(_parse_stage(rest))
                elif word == "schedule":
                    schedule = _parse_schedule(rest)
                elif word in _FIELDS:
                    fields[word] = _FIELDS[word](rest)
                else:
                    raise ValueError(f"lines begin with {', '.join(_FIELDS)}, stage, schedule, variable or ops")
            except ValueError as error:
                raise ValueError(f"line {number} of the plan, {line!r}: {error}") from error
        missing = [word for word in _FIELDS if word not in fields]
        if missing:
            raise ValueError(f"the plan has no line that begins with {missing[0]!r}: it was cut short")
        fingerprint, count = fields.pop("graph")
        if sorted(choices) != list(range(count)):
            raise ValueError(f"the plan is for {count} ops but gives layouts for {len(choices)}: it was cut short")
        if stages and sorted(op for _, ops in stages for op in ops) != list(range(count)):
            raise ValueError(f"the plan is for {count} ops, and its stages do not have each of them once")
        return cls(
            graph=fingerprint,
            variables=tuple(variables),
            choices=tuple(choices[index] for index in range(count)),
            pipelining=Pipelining.parse(stages, schedule) if stages else None,
            **fields,
        )

    def nameless(self) -> Plan:
        """The same plan with numbers for names, which also depend on what else a process has built."""
        names = tuple((str(n), layout) for n, (_, layout) in enumerate(self.variables))
        return replace(self, variables=names, estimator=None)

    def save(self, path: str | Path) -> None:
        Path(path).write_text(str(self))

    @classmethod
    def load(cls, path: str | Path) -> Plan:
        return cls.parse(Path(path).read_text())

    def diff(self, other: Plan) -> list[str]:
        """The lines in which two plans differ, `-` for this one's and `+` for the other's."""
        mine, theirs = str(self).splitlines(), str(other).splitlines()
        return [f"- {line}" for line in mine if line not in set(theirs)] + [
            f"+ {line}" for line in theirs if line not in set(mine)
        ]


def _ranges(numbers: Sequence[int]) -> str:
    """`0-3,5` for 0, 1, 2, 3, 5."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def _parse_ranges(text: str) -> Iterator[int]:
    for run in text.split(","):
        first, _, last = run.partition("-")
        yield from range(int(first), int(last or first) + 1)


def _parse_mesh(text: str) -> Mesh:
    axes_text, _, devices = text.partition(" on ")
    axes = []
    for axis in axes_text.split(" x "):
        name, sign, rest = re.split("([:~])", axis, maxsplit=1)
        size, _, shares = rest.removesuffix("]").partition("[")
        axes.append(Axis(name, int(size), tuple(map(int, shares.split(","))) if shares else None, sign == "~"))
    return Mesh(tuple(axes), tuple(_parse_ranges(devices)))


def _parse_stage(text: str) -> tuple[Mesh, list[int]]:
    mesh, _, ops = text.partition(" : ")
    return _parse_mesh(mesh), [] if ops.strip() == "." else list(_parse_ranges(ops))


def _parse_schedule(text: str) -> tuple[str, bool]:
    quoted = text.removesuffix(" recompute")
    try:
        return str(ast.literal_eval(quoted)), quoted != text
    except SyntaxError as error:
        raise ValueError(f"{quoted} is not a text in quotes") from error


def _parse_graph(text: str) -> tuple[str, int]:
    fingerprint, _, count = text.removesuffix(" ops").partition(" of ")
    return fingerprint, int(count)


_FIELDS = {"mesh": _parse_mesh, "graph": _parse_graph, "inputs": _split, "outputs": _split}
"""How the rest of each line that comes once is read."""
