"""`wh.function`: a training step that runs on all devices, in place of `tf.function`."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from whaleish import tf_private
from whaleish.capture import Capture, Signature, capture_signature, take_apart
from whaleish.cluster import Cluster
from whaleish.planner import Plan, PlanError, make_plan
from whaleish.program import Program
from whaleish.report.explain import explain
from whaleish.rewrite.expand import expand
from whaleish.state import storage
from whaleish.world import world

_tracing = threading.local()


class Function:
    """A step compiled for the devices of `wh.init()`, once for each signature of its arguments."""

    def __init__(self, fn: Callable[..., Any], *, plan: Plan | None = None, inputs: str = "global") -> None:
        if inputs not in ("global", "local"):
            raise ValueError(
                f"inputs={inputs!r}: 'global' means that every process passes the whole batch, "
                "'local' that each passes its own part"
            )
        self._fn, self._plan, self._inputs = fn, plan, inputs
        self._programs: dict[Any, Program] = {}
        functools.update_wrapper(self, fn, updated=())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if getattr(_tracing, "active", False):
            return self._fn(*args, **kwargs)  # called by a step that is being captured: a part of that step
        _refuse_graph_and_tape(self.__name__)
        signature, flat = take_apart(args, kwargs)
        program = self._programs.get(signature.key)
        if program is None:
            program = self._programs[signature.key] = self._compile(signature)
        return program(flat)

    def plan_for(self, *args: Any, **kwargs: Any) -> Plan:
        """The plan for a call with these arguments (tensors, arrays or `tf.TensorSpec`s), without running it."""
        signature, _ = take_apart(args, kwargs)
        return self._plan_of(self._capture(signature))

    def explain(self, *args: Any, **kwargs: Any) -> str:
        """What the plan for these arguments sends, from which line of yours, and what it could not divide."""
        signature, _ = take_apart(args, kwargs)
        captured = self._capture(signature)
        return explain(*expand(captured.graph, self._plan_of(captured)))

    def program_for(self, *args: Any, **kwargs: Any) -> Program:
        """The compiled program for a call with these arguments, which it compiles but does not run."""
        signature, _ = take_apart(args, kwargs)
        program = self._programs.get(signature.key)
        if program is None:
            program = self._programs[signature.key] = self._compile(signature)
        return program

    def _compile(self, signature: Signature) -> Program:
        captured = self._capture(signature)
        return Program(captured, self._plan_of(captured), world())

    def _capture(self, signature: Signature) -> Capture:
        _tracing.active = True
        try:
            return capture_signature(self._fn, signature)
        finally:
            _tracing.active = False

    def _plan_of(self, captured: Capture) -> Plan:
        if self._plan is not None:
            return self._plan
        laid_out = {
            v.name: storage(variable).layout
            for v, variable in zip(captured.graph.variables, captured.variables, strict=True)
            if not storage(variable).whole
        }
        return make_plan(captured.graph, Cluster(world().size), variables=laid_out)


def _refuse_graph_and_tape(name: str) -> None:
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


def function(fn: Callable[..., Any] | None = None, *, plan: Plan | None = None, inputs: str = "global") -> Any:
    """Compiles a training step for all devices; use it in place of `tf.function`, also as a decorator.

    Args:
      fn: a Python function, `tf.function`, `ConcreteFunction` or SavedModel signature.
      plan: a plan to use in place of the planner's, made for the same step on as many devices.
      inputs: "global": every process passes the same whole batch, and each device takes its part of it;
        "local": each process passes its own part.

    Returns:
      A callable that takes and returns what `fn` does. Values are logical: on every rank the whole result, as one
      device would give it.
    """
    if fn is None:
        return functools.partial(function, plan=plan, inputs=inputs)
    return Function(fn, plan=plan, inputs=inputs)


__all__ = ["Function", "PlanError", "function"]
