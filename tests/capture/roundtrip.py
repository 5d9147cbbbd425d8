"""Builds a captured graph again as a TensorFlow function, to compare what it computes with the step itself."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from whaleish.capture import Capture
from whaleish.rules import OURS


def rebuild(captured: Capture):
    """A function of the flat arguments that runs the captured graph and returns what the step returns."""
    graph = captured.graph
    if any(op.type in OURS for op in graph.ops):
        return emitted(captured)
    definition = tf.compat.v1.GraphDef()
    definition.library.CopyFrom(captured.library)
    definition.versions.CopyFrom(captured.concrete.graph.as_graph_def().versions)
    handles = [variable.handle for variable in graph.variables]
    fed = dict.fromkeys((*graph.inputs, *handles))
    names: dict[int, str] = {}
    for number, op in enumerate(graph.ops):
        for slot, tensor in enumerate(op.outputs):
            names[tensor] = f"{op.name}:{slot}"
        if op.outputs and op.outputs[0] in fed:
            continue
        node = definition.node.add()
        if op.outputs and op.outputs[0] in graph.constants:
            value = graph.constants[op.outputs[0]]
            node.op = "Const"
            node.attr["dtype"].type = tf.as_dtype(op.attrs["dtype"]).as_datatype_enum
            node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value, dtype=op.attrs["dtype"]))
        else:
            node.CopyFrom(op.payload)
            node.attr.pop("_class", None)
            node.attr.pop("_gradient_op_type", None)
            del node.input[:]
            node.input.extend(names[tensor] for tensor in op.inputs)
            node.input.extend("^" + graph.ops[control].name for control in op.controls)
        node.name = op.name
        assert all(tensor < op.outputs[0] if op.outputs else True for tensor in op.inputs)
        assert all(control < number for control in op.controls)

    read = {tensor for op in graph.ops for tensor in op.inputs} | set(graph.outputs)

    @tf.function(autograph=False)
    def run(*arguments):
        tensors = [*arguments, *captured.captured, *captured.resources, *(v.handle for v in captured.variables)]
        inside = [tf.compat.v1.get_default_graph().capture(tf.convert_to_tensor(t)) for t in tensors]
        pairs = zip((*graph.inputs, *handles), inside, strict=True)
        given = {names[number]: tensor for number, tensor in pairs if number in read}
        wanted = [names[tensor] for tensor in graph.outputs] + [graph.ops[effect].name for effect in graph.effects]
        found = tf.graph_util.import_graph_def(definition, given, wanted, name="again")
        outputs, effects = found[: len(graph.outputs)], found[len(graph.outputs) :]
        with tf.control_dependencies(effects):
            return [tf.identity(output) for output in outputs]

    def step(*arguments):
        return captured.pack(run(*arguments))

    return step


def emitted(captured: Capture):
    """The same of a graph with ops that are none of TensorFlow's: written for one device."""
    from whaleish import tf_private
    from whaleish.boxing.local import LocalBoxer
    from whaleish.cluster import Cluster
    from whaleish.planner import make_plan
    from whaleish.rewrite.emit import Emitter

    plan = make_plan(captured.graph, Cluster(1))
    emitter = Emitter(captured.graph, plan, [0], [""])
    found = emitter.run(lambda writer, _: LocalBoxer(writer, plan.mesh, [0], [""]))
    main = found.function_def(f"rebuilt_{id(captured)}")
    for function in (*found.bodies, main):
        tf_private.register_function(function)
    places = {tensor: place for place, tensor in enumerate(captured.graph.inputs)}
    handles = {v.handle: obj.handle for v, obj in zip(captured.graph.variables, captured.variables, strict=True)}

    def step(*arguments):
        values = [*map(tf.convert_to_tensor, arguments), *captured.captured, *captured.resources]
        inputs = [values[places[t]] if t in places else handles[t] for t, _ in found.arguments]
        return captured.pack(tf_private.call_function(main.signature.name, inputs, len(found.outputs)))

    return step


def assert_same(fn, *args, steps: int = 3, tolerance: float = 1e-6, plain=None) -> Capture:
    """Asserts that the captured step does what `fn` does: outputs and variables, over a few steps from one start."""
    from whaleish.capture import capture

    captured = capture(fn, *args)
    again = rebuild(captured)
    start = [variable.numpy() for variable in captured.variables]
    plain = plain or (fn if isinstance(fn, tf.types.experimental.PolymorphicFunction) else tf.function(fn))
    args = [tf.constant(a) if isinstance(a, np.ndarray) else a for a in args]
    expected = [plain(*args) for _ in range(steps)]
    after = [variable.numpy() for variable in captured.variables]
    for variable, value in zip(captured.variables, start, strict=True):
        variable.assign(value)
    actual = [again(*args) for _ in range(steps)]
    tf.nest.assert_same_structure(expected, actual)
    flat_pairs = zip(tf.nest.flatten(expected, True), tf.nest.flatten(actual, True), strict=True)
    for one, other in ((one, other) for one, other in flat_pairs if one is not None or other is not None):
        if one.dtype == tf.string:
            assert one == other
            continue
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)
    for variable, value in zip(captured.variables, after, strict=True):
        np.testing.assert_allclose(value, variable.numpy(), rtol=tolerance, atol=tolerance, err_msg=variable.name)
    return captured
