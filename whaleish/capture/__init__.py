"""Capture: a training step as a `LogicalGraph`.

    captured = capture(step, images, labels)     # traces, runs nothing; TensorSpecs do in place of tensors
    captured.graph                               # LogicalGraph: inputs are arguments, captured tensors, resources
    captured.variables                           # tf.Variables, aligned with graph.variables
    captured.pack(flat_outputs)                  # what the step returns

    signature, flat = take_apart(args, kwargs)   # per call: signature.key names the trace, flat are graph.inputs' first
    captured = capture_signature(step, signature)

    fingerprint(graph)                           # equal on every process that traced an equal step
    describe(graph)                              # the lines behind it, to find where steps differ
    step = from_graph_def(graph_def, ["x"], {"loss": "loss:0"})

Every op of the graph keeps its NodeDef as payload, except `Const` ops without one, which folding made: their value is
in `graph.constants`, their dtype in `attrs["dtype"]`. All `Const`s of at most 4,096 numbers have their value there.
Arguments, captured tensors, resources and variable handles are `Placeholder` ops. Functions that `While`, `If`, ...
refer to are in `captured.library`, and registered with the runtime; their names end in hashes of their bodies. `attrs`
has neither tensors nor attributes whose name starts with an underscore; `payload` has all.
"""

from whaleish.capture.describe import describe, fingerprint
from whaleish.capture.signature import Signature, take_apart
from whaleish.capture.steps import from_graph_def
from whaleish.capture.trace import Capture, capture, capture_signature

__all__ = [
    "Capture",
    "Signature",
    "capture",
    "capture_signature",
    "describe",
    "fingerprint",
    "from_graph_def",
    "take_apart",
]
