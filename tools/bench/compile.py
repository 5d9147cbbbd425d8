"""What compiling costs: the parts of whaleish's compilation, against TensorFlow's own trace of the same step.

tensorflow             tf.function's trace
whaleish: trace        the user's Python, inside whaleish's capture
          capture      what is left of the capture: from the traced graph to the logical one
          plan         layouts
          emit         the function of one rank, as a proto
          register     handing it to TensorFlow
plan-emit-register     the last three together
"""

from __future__ import annotations

import time
from typing import Any

import tensorflow as tf

from tools.bench.resnet import Net, data, make_net

RANKS = 2
TOGETHER = "plan-emit-register"


class Clock:
    """Wall and CPU seconds since it was made."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def read(self) -> dict[str, Any]:
        return {"seconds": [time.perf_counter() - self._wall], "cpu": [time.process_time() - self._cpu]}


def measure() -> dict[str, dict[str, Any]]:
    """Part -> its seconds and CPU seconds; once, for everything after the first time is faster."""
    from whaleish.rules import registry  # noqa: F401 - loading is no part of compiling
    from whaleish.world import init

    net, given = make_net("adamw"), data()
    found: dict[str, dict[str, Any]] = {}

    clock = Clock()
    tf.function(_step_of(net, {})).get_concrete_function(*given)
    found["tensorflow"] = clock.read()

    init()
    found |= _whaleish(make_net("adamw"), given)
    return found


def _step_of(net: Net, trace: dict[str, Any]) -> Any:
    def step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        clock = Clock()
        with tf.GradientTape() as tape:
            loss = net.loss(x, y)
        net.update(tape.gradient(loss, [v.value for v in net.weights]))
        trace.update(clock.read())
        return loss

    return step


def _whaleish(net: Net, given: tuple[tf.Tensor, tf.Tensor]) -> dict[str, dict[str, Any]]:
    import horovod.tensorflow as hvd  # noqa: F401 - its ops must be known

    from whaleish import tf_private
    from whaleish.capture import capture, fingerprint
    from whaleish.cluster import Cluster
    from whaleish.planner import make_plan
    from whaleish.program import emit
    from whaleish.world import World

    trace: dict[str, Any] = {}
    clock = Clock()
    captured = capture(_step_of(net, trace), *given)
    whole = clock.read()
    rest = {figure: [whole[figure][0] - trace[figure][0]] for figure in whole}

    together = Clock()
    clock = Clock()
    plan = make_plan(captured.graph, Cluster(RANKS), fingerprint=fingerprint(captured.graph)[:12])
    planned = clock.read()
    clock = Clock()
    emitted = emit(captured, plan, World(("/device:CPU:0",), RANKS, 0, distributed=True))
    function = emitted.function_def("bench_compile")
    written = clock.read()
    clock = Clock()
    for needed in captured.library.function:
        tf_private.register_function(needed)
    tf_private.register_function(function)
    registered = clock.read()
    parts = {"trace": trace, "capture": rest, "plan": planned, "emit": written, "register": registered}
    return parts | {TOGETHER: together.read()}
