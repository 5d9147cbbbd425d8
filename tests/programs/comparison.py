"""Running programs divided, and on one device, and telling where they differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf
from hypothesis import reject

from tests.boxing.pinning import pinned_plan
from tests.programs.chance import Chance, chooser
from tests.programs.program import Program, place
from whaleish.capture import Capture, capture, fingerprint
from whaleish.cluster import Cluster
from whaleish.mesh import Mesh
from whaleish.planner import Plan, make_plan
from whaleish.program import Program as Compiled
from whaleish.rules import registry
from whaleish.sbp import is_whole
from whaleish.state.tf_private import unoptimized
from whaleish.world import world

CALLS = 2
"""How often each step runs; variables change in between."""

SHORTEST = 5
"""Programs of fewer statements do not count."""

TOLERANCE = 1e-9
"""For differences relative to the largest element, or to 1."""


@dataclass
class Tally:
    """What has been covered.

    Attributes:
      checks: finished; programs: run; steps: that they came in.
      divided: op type -> how many ops of it, of those that have a rule, took other layouts than all B.
    """

    checks: int = 0
    programs: int = 0
    steps: int = 0
    divided: Counter[str] = field(default_factory=Counter)

    def add(self, programs: Sequence[Program], capture: Capture, plan: Plan) -> None:
        self.programs += sum(len(program.body) >= SHORTEST for program in programs)
        self.steps += 1
        for op, choice in zip(capture.graph.ops, plan.choices, strict=True):
            if op.type in registry.rules and not is_whole(*choice.inputs, *choice.outputs):
                self.divided[op.type] += 1

    def __str__(self) -> str:
        types = ", ".join(f"{type} {count}" for type, count in self.divided.most_common())
        return f"{self.programs} programs in {self.steps} steps; {len(self.divided)} op types divided: {types}"


def check_pinned(drawn: Sequence[tuple[Program, Chance]], mesh: Mesh, tally: Tally) -> None:
    """Runs programs as one step under a plan drawn by chance, and holds them to what one device makes of them."""

    def pinned(captured: Capture) -> Plan:
        return pinned_plan(captured.graph, mesh, chooser(captured.graph, drawn))

    check([program for program, _ in drawn], pinned, tally)


def check_planned(programs: Sequence[Program], tally: Tally) -> None:
    """The same under the planner's plan for the programs' scopes."""

    def planned(captured: Capture) -> Plan:
        return make_plan(captured.graph, Cluster(world().size), fingerprint=fingerprint(captured.graph)[:12])

    check(programs, planned, tally)


def check(programs: Sequence[Program], choose: Callable[[Capture], Plan], tally: Tally) -> None:
    """Runs programs as one step; first the function that TensorFlow traced, on one device, then that under a plan.

    Without TensorFlow's graph optimizer, which would take a third of the time.
    """
    given = [tuple(tf.constant(value) for value in program.arguments.values()) for program in programs]
    step, variables = step_of(programs)
    try:
        captured = capture(step, given)
    except Exception:
        refuse_what_cannot_be_traced(step, given)
        raise
    plan = choose(captured)
    tally.add(programs, captured, plan)
    flat = [argument for arguments in given for argument in arguments]
    with unoptimized():
        wanted = [(captured.pack(captured.concrete(*flat)), values(variables)) for _ in range(CALLS)]
    begin_anew(programs, variables)
    try:
        compiled = Compiled(captured, plan, world())
        with unoptimized():
            got = [(compiled(flat), values(variables)) for _ in range(CALLS)]
    except Exception as error:
        raise AssertionError(f"{type(error).__name__}: {error}\n\n{listing(programs, captured, plan)}") from error
    for number, program in enumerate(programs):
        for call in range(CALLS):
            pairs = zip(got[call], wanted[call], strict=True)
            differing = [text for a, b in pairs for text in differences(a[number], b[number])]
            if differing:
                text = "\n".join([f"program {number}, call {call + 1}:", *differing, ""])
                raise AssertionError(f"{text}\n{listing([program], captured, plan, number)}")


def refuse_what_cannot_be_traced(step: Any, given: Any) -> None:
    """Rejects a step that TensorFlow carries out eagerly only: where it knows a shape by then, for instance."""
    try:
        step.get_concrete_function(given)
    except Exception:
        reject()


def begin_anew(programs: Sequence[Program], variables: Sequence[dict[str, tf.Variable]]) -> None:
    for program, own in zip(programs, variables, strict=True):
        for name, variable in own.items():
            variable.assign(program.variables[name])


def step_of(programs: Sequence[Program]) -> tuple[Any, list[dict[str, tf.Variable]]]:
    """The programs as one step on all their arguments, and their variables."""
    variables = [
        {name: tf.Variable(value, name=f"p{k}_{name}") for name, value in program.variables.items()}
        for k, program in enumerate(programs)
    ]
    steps = [program.step(number) for number, program in enumerate(programs)]

    def step(given: Any) -> Any:
        rows = zip(steps, given, variables, strict=True)
        return [step(arguments, list(own.values())) for step, arguments, own in rows]

    return tf.function(step, autograph=False), variables


def values(variables: Sequence[dict[str, tf.Variable]]) -> list[dict[str, np.ndarray]]:
    return [{name: variable.numpy() for name, variable in own.items()} for own in variables]


def differences(got: dict[str, Any], wanted: dict[str, Any]) -> list[str]:
    """A text for each value that differs."""
    return [text for name in wanted if (text := difference(name, np.asarray(got[name]), np.asarray(wanted[name])))]


def difference(name: str, got: np.ndarray, wanted: np.ndarray) -> str:
    if got.shape != wanted.shape or got.dtype != wanted.dtype:
        return f"{name} is {got.dtype}{list(got.shape)}, and {wanted.dtype}{list(wanted.shape)} on one device"
    if wanted.dtype.kind not in "fc":
        return "" if np.array_equal(got, wanted) else f"{name} is\n{got}\nand on one device\n{wanted}"
    scale = max(1.0, float(np.max(np.abs(wanted), initial=0.0)))
    if np.allclose(got, wanted, rtol=0, atol=TOLERANCE * scale, equal_nan=True):
        return ""
    return f"{name} is\n{got}\nand on one device\n{wanted}"


def listing(programs: Sequence[Program], capture: Capture, plan: Plan, first: int = 0) -> str:
    """The programs, under each line the ops that it became and are divided, with their layouts."""
    graph = capture.graph
    made: dict[str, list[str]] = {}
    for index, (op, choice) in enumerate(zip(graph.ops, plan.choices, strict=True)):
        if not is_whole(*choice.inputs, *choice.outputs):
            shapes = ", ".join(str(list(graph.tensors[t].shape or ())) for t in op.inputs)
            made.setdefault(graph.source(index), []).append(f"{op.type}({shapes}) {choice}")
    text = [f"on the mesh {plan.mesh.text()}"]
    text += [f"variable {name} {layout}" for name, layout in plan.variables if name.startswith(f"p{first}_")]
    for number, program in enumerate(programs, first):
        for line, code in enumerate(program.lines, 1):
            names = [word for word in code.split("=")[0].strip(" []").split(", ") if word in program.shapes]
            specs = ", ".join(f"{program.dtypes[name]}{list(program.shapes[name])}" for name in names)
            text.append(f"{code}  # {specs}" if specs else code)
            text += [f"{' ' * 12}# {entry}" for entry in made.get(f"{place(number)}:{line}", ())]
    return "\n".join(text)
