"""`wh.function`: a training step that runs on all devices, in place of `tf.function`."""

from __future__ import annotations

import functools
import itertools
import logging
import os
import threading
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import tensorflow as tf

from whaleish import tf_private, tracing
from whaleish.agreement import agree
from whaleish.arguments import Call, take_call
from whaleish.capture import Capture, capture_signature, describe, fingerprint, from_graph_def
from whaleish.capture.seeds import seed, unseeded
from whaleish.given import check_given, fitting
from whaleish.graph import LogicalGraph
from whaleish.meeting import share
from whaleish.opening import AssignedDifferError, explained, open_first_call, refuse_after_failure
from whaleish.passes import finished
from whaleish.passes.budget import AUTO, check_budget, recomputed
from whaleish.planner import Plan, PlanError, make_plan
from whaleish.program import Program
from whaleish.report.again import recompute_lines
from whaleish.report.explain import explain
from whaleish.report.freeing import memory_lines
from whaleish.report.memory import estimate, estimate_passed
from whaleish.report.offloaded import offloaded_lines
from whaleish.report.stages import explain_stages
from whaleish.rewrite.expand import expand
from whaleish.rules_by_name import Rules, apply_rules, parse_rules
from whaleish.sbp import B
from whaleish.staged import StagedProgram
from whaleish.state import (
    assigned,
    assigned_text,
    broadcast_from_chief,
    equalise_copies,
    install,
    is_deferred,
    pins,
    storage,
    while_capturing,
)
from whaleish.world import world

_log = logging.getLogger("whaleish")
_tracing = threading.local()
_serial = itertools.count()


MANY_PROGRAMS = 8
"""A step that is compiled for so many signatures says so once."""


class Function:
    """A step compiled for the devices of `wh.init()`, once for each signature of its arguments."""

    def __init__(
        self,
        fn: Callable[..., Any],
        *,
        plan: Plan | None = None,
        rules: Rules | None = None,
        inputs: str = "global",
        recompute: str | None = None,
        memory: int | None = None,
    ) -> None:
        if inputs not in ("global", "local"):
            raise ValueError(
                f"inputs={inputs!r}: 'global' means that every process passes the whole batch, "
                "'local' that each passes its own part"
            )
        check_given(plan)
        self._memory = check_budget(recompute, memory)
        self._fn, self._plan, self._inputs = fn, plan, inputs
        self._given_rules, self._rules = rules, parse_rules(rules or {})
        self._programs: dict[Any, Program | StagedProgram] = {}
        self._pins = pins.count
        self._bound: dict[int, tuple[weakref.ref[Any], Function]] = {}  # by id: instances need not be hashable
        self._equal: dict[int, weakref.ref[Any]] = {}  # variables whose values the ranks have compared, by id
        self.__name__ = type(fn).__name__  # of what has no name itself, a model for instance
        functools.update_wrapper(self, fn, updated=())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if getattr(_tracing, "active", False):
            return self._fn(*args, **kwargs)  # called by a step that is being captured: a part of that step
        here = world()
        _refuse_context(self.__name__)
        refuse_after_failure(here)
        install()  # clear_session() of Keras takes the variable creator away
        call = take_call(args, kwargs, self._inputs, here)
        program = self._program(call)
        try:
            return self._run(program, call)
        except AssignedDifferError:  # found before the step began
            self._equalise(program.capture)
        return self._run(program, call)

    def _run(self, program: Program | StagedProgram, call: Call) -> Any:
        with explained(program.world, self.__name__, call.text):
            return tracing.run(self.__name__, program, call.values, call.batch)

    def __get__(self, instance: Any, owner: type | None = None) -> Function:
        """A step that is a method: one for each instance, for as long as that lives."""
        if instance is None:
            return self
        key = id(instance)
        kept = self._bound.get(key)
        if kept is None:
            alive = weakref.ref(instance, lambda _: self._bound.pop(key, None))

            def method(*args: Any, **kwargs: Any) -> Any:
                return self._fn(alive(), *args, **kwargs)

            method.__name__, method.__doc__ = self.__name__, self._fn.__doc__
            kept = self._bound[key] = (
                alive,
                Function(
                    method,
                    plan=self._plan,
                    rules=self._given_rules,
                    inputs=self._inputs,
                    recompute=None if self._memory is None else AUTO,
                    memory=self._memory,
                ),
            )
        return kept[1]

    def plan_for(self, *args: Any, **kwargs: Any) -> Plan:
        """The plan for a call with these arguments (tensors, arrays or `tf.TensorSpec`s), without running it.

        It knows the step, so that `plan.estimate()` says what each device would hold.
        """
        call = take_call(args, kwargs, self._inputs, world())
        captured, processes = self._capture(call), world().processes
        estimator = functools.partial(estimate, captured.graph, memory=self._memory, processes=processes)
        return replace(self._plan_of(captured, call), estimator=estimator)

    def explain(self, *args: Any, **kwargs: Any) -> str:
        """What the plan for these arguments sends and holds, from which line of yours, and what it could not divide."""
        call = take_call(args, kwargs, self._inputs, world())
        captured, here = self._capture(call), world()
        made = recomputed(captured.graph, self._plan_of(captured, call), self._memory)
        graph, plan = finished(made.graph, made.plan)
        if plan.pipelining is None:
            text = explain(*expand(graph, plan))
        else:
            text = explain_stages(graph, plan, here.rates, here.processes)
        held = estimate_passed(graph, plan, here.processes)
        lines = [*recompute_lines(made), *offloaded_lines(graph, plan), "", *memory_lines(graph, plan, held)]
        return text + "".join(f"{line}\n" for line in lines)

    def program_for(self, *args: Any, **kwargs: Any) -> Program | StagedProgram:
        """The compiled program for a call with these arguments, which it compiles but does not run.

        Over several processes all must call it.
        """
        return self._program(take_call(args, kwargs, self._inputs, world()))

    def _program(self, call: Call) -> Program | StagedProgram:
        if self._pins != pins.count:  # the user has stated layouts since
            self._programs, self._pins = {}, pins.count
        program = self._programs.get(call.key)
        if program is None:
            program = self._programs[call.key] = self._compile(call)
            if len(self._programs) == MANY_PROGRAMS:
                _log.warning(
                    "the step %r has been compiled for %d different signatures, the last with %s. Each takes as long "
                    "as the first. Pad batches to one size, or to a few (bucketing: "
                    "tf.data.Dataset.bucket_by_sequence_length, padded_batch); pass numbers that change as tensors",
                    self.__name__,
                    MANY_PROGRAMS,
                    ", ".join(call.text().splitlines()[:4]),
                )
            self._pins = pins.count  # stated in the step itself, and so met
        return program

    def _compile(self, call: Call) -> Program | StagedProgram:
        here = world()
        open_first_call(here, self.__name__, call.text())
        captured = self._capture(call)
        plan = self._plan_of(captured, call)
        waiting: list[tf.Variable] = []
        if here.distributed:
            does = "\n".join([*describe(captured.graph), str(plan.nameless()), f"memory {self._memory}"])
            agree(f"what the step {self.__name__!r} does", does, place_of=captured.graph.place)
            if unseeded(captured.graph):
                seed(captured.graph, int.from_bytes(share(f"whaleish_seed_{next(_serial)}", os.urandom(7))[0], "big"))
            new = [v for v in captured.variables if (kept := self._equal.get(id(v))) is None or kept() is not v]
            _warn_of(broadcast_from_chief(new))
            self._equal.update((id(v), weakref.ref(v)) for v in new)
            waiting = [v for v in new if is_deferred(v)]
        made = recomputed(captured.graph, plan, self._memory)
        graph, plan = finished(made.graph, made.plan)
        program = (StagedProgram if plan.pipelining else Program)(replace(captured, graph=graph), plan, here)
        equalise_copies(waiting)
        return program

    def _equalise(self, capture: Capture) -> None:
        """Where all ranks assigned to the same variables, they get what rank 0 assigned."""
        text = assigned_text(capture.variables, [variable.name for variable in capture.graph.variables])
        agree(f"what the program assigned to variables before this call of the step {self.__name__!r}", text)
        _warn_of(broadcast_from_chief(variable for _, variable in assigned(capture.variables)))

    def _capture(self, call: Call) -> Capture:
        _tracing.active = True
        try:
            with while_capturing():
                return capture_signature(self._fn, call.signature, lambda graph: apply_rules(graph, self._rules))
        finally:
            _tracing.active = False

    def _plan_of(self, captured: Capture, call: Call) -> Plan:
        graph = captured.graph
        arrivals = (*call.layouts, *((B,) for _ in graph.inputs[captured.arguments :]))
        if self._plan is not None:
            return fitting(self._plan, graph, arrivals, self.__name__)
        stored = zip(graph.variables, map(storage, captured.variables), strict=True)
        plan = make_plan(
            graph,
            world().rates,
            fingerprint=fingerprint(graph)[:12],
            inputs=arrivals,
            variables={v.name: (stored.layout, stored.mesh) for v, stored in stored if not stored.whole},
        )
        if not self._programs:  # the last batch of an epoch may be as small as it likes
            _refuse_few_rows(graph, plan, self.__name__)
        return plan


def _warn_of(differing: list[str]) -> None:
    if differing:
        _log.warning("%d variables differed between ranks and now have rank 0's values", len(differing))


def _refuse_few_rows(graph: LogicalGraph, plan: Plan, name: str) -> None:
    rows = max((shape[0] for t in graph.inputs if (shape := graph.tensors[t].shape)), default=0)
    kind = "pipeline" if plan.pipelining else "accumulate"
    for axis in plan.mesh.axes:
        if axis.time and 0 < rows < axis.size:
            scope = next(scope for path in graph.scopes for scope in path if scope.kind == kind)
            raise PlanError(
                f"the step {name!r} was called with a batch of {rows} rows, and wh.{kind}({axis.size})"
                f"{graph.begin(scope)} cuts it into {axis.size} micro-batches: give it at least as many rows, or fewer "
                "micro-batches"
            )


def _refuse_context(name: str) -> None:
    if tf.inside_function():
        raise RuntimeError(
            f"the step {name!r} was called while TensorFlow traces another function; a step is compiled whole and "
            "called from Python. Call it from plain Python, or make the outer function the wh.function"
        )
    if tf_private.tape_is_recording():
        raise RuntimeError(
            f"the step {name!r} was called under a GradientTape, which cannot see into it and would give no "
            "gradients. Put the tape and tape.gradient inside the step"
        )


def function(
    fn: Callable[..., Any] | None = None,
    *,
    plan: Plan | None = None,
    rules: Rules | None = None,
    inputs: str = "global",
    recompute: str | None = None,
    memory: int | None = None,
) -> Any:
    """Compiles a training step for all devices; use it in place of `tf.function`, also as a decorator.

    Args:
      fn: a Python function, `tf.function`, `ConcreteFunction` or SavedModel signature; for a GraphDef there is
        `wh.function.from_graph_def(graph_def, inputs, outputs)`.
      plan: a plan to use in place of the planner's, made for the same step on as many devices.
      rules: scopes and layouts for code that is not to be edited: regular expression -> a scope (`wh.split()`),
        several from outer to inner (`(wh.replica(2), wh.split())`), or a layout (`"S(0)"`). An expression is searched
        for in the names of the forward ops (`"encoder/.*dense"`), for a layout in those of the variables; the first
        that is found counts.
      inputs: "global": every process passes the same whole batch, and each device takes its part of it;
        "local": each process passes its own part.
      recompute: "auto": as many blocks of the forward as it takes to stay within `memory` are made again for the
        backward (`wh.recompute()` round each would do the same); None: only what is under `wh.recompute()`.
      memory: bytes that each device may hold, of variables, arguments and what the step makes; with `recompute="auto"`.

    Returns:
      A callable that takes and returns what `fn` does. Values are logical: on every rank the whole result, as one
      device would give it.
    """
    if fn is None:
        return functools.partial(function, plan=plan, rules=rules, inputs=inputs, recompute=recompute, memory=memory)
    return Function(fn, plan=plan, rules=rules, inputs=inputs, recompute=recompute, memory=memory)


def _from_graph_def(*args: Any, **kwargs: Any) -> Function:
    """A step from a GraphDef of TF1-style code; takes the arguments of `whaleish.capture.from_graph_def`."""
    return Function(from_graph_def(*args, **kwargs))


function.from_graph_def = _from_graph_def  # type: ignore[attr-defined]
