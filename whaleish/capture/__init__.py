"""Capture: a training step as a `LogicalGraph`.

    captured = capture(step, images, labels)     # traces, runs nothing; TensorSpecs do in place of tensors
    captured.graph                               # LogicalGraph: inputs are arguments, captured tensors, resources
    captured.variables                           # tf.Variables, aligned with graph.variables
    captured.pack(flat_outputs)                  # what the step returns

    signature, flat = take_apart(args, kwargs)   # per call: signature.key names the trace, flat are graph.inputs' first
    captured = capture_signature(step, signature)

Every op of the graph keeps its NodeDef as payload, except `Const` ops without one, which folding made: their value is
in `graph.constants`, their dtype in `attrs["dtype"]`. All `Const`s of at most 4,096 numbers have their value there.
Arguments, captured tensors, resources and variable handles are `Placeholder` ops. Functions that `While`, `If`, ...
refer to are in `captured.library`.
"""

from whaleish.capture.signature import Signature, take_apart
from whaleish.capture.trace import Capture, capture, capture_signature

__all__ = ["Capture", "Signature", "capture", "capture_signature", "take_apart"]
