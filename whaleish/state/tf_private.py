"""The calls into TensorFlow's private modules that laid-out variables need, and nothing else.

Measured on TensorFlow 2.21: the handles that `tf.Variable` makes are anonymous and counted, and destroying their
resource does nothing while the handle lives. A handle with a shared name can be destroyed and assigned again, any
number of times, and functions traced on it go on working; a read in between raises `FailedPreconditionError`.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import weakref
from collections.abc import Callable, Iterator

import tensorflow as tf
from tensorflow.core.protobuf import config_pb2
from tensorflow.python.eager import context, record
from tensorflow.python.eager.polymorphic_function import transform
from tensorflow.python.framework import op_def_registry, ops
from tensorflow.python.ops import gen_resource_variable_ops as gen
from tensorflow.python.ops import handle_data_util, resource_variable_ops, variables

ResourceVariable = resource_variable_ops.ResourceVariable
BaseResourceVariable = resource_variable_ops.BaseResourceVariable
EagerTensor = ops.EagerTensor
variable_accessed = resource_variable_ops.variable_accessed

_numbers = itertools.count()
_PRIORITY = 100  # of variable creators, TensorFlow's default


class Resource:
    """The storage of one tensor on one device ("": where variables are made now), freed when this object goes.

    Attributes:
      handle: the resource tensor. It stays the same while the storage is destroyed and made again.
    """

    def __init__(self, shape: tf.TensorShape, dtype: tf.DType, device: str, name: str) -> None:
        shared_name = f"whaleish/{name}/{os.getpid()}.{next(_numbers)}"
        with tf.init_scope(), tf.device(device) if device else contextlib.nullcontext():
            self.handle = gen.var_handle_op(
                shape=shape, dtype=dtype, shared_name=shared_name, debug_name=name, container="", name=""
            )
        self.handle._handle_data = handle_data_util.create_handle_data(shape, dtype)
        self.dtype = dtype
        self._deleter = resource_variable_ops.EagerResourceDeleter(self.handle, self.handle.device)

    def read(self) -> tf.Tensor:
        return gen.read_variable_op(self.handle, self.dtype)

    def assign(self, value: tf.Tensor) -> None:
        """Sets the value; makes the storage again if it was destroyed."""
        with tf.device(self.handle.device):
            gen.assign_variable_op(self.handle, value)

    def assign_add(self, value: tf.Tensor) -> None:
        with tf.device(self.handle.device):
            gen.assign_add_variable_op(self.handle, value)

    def exists(self) -> bool:
        return bool(gen.var_is_initialized_op(self.handle))

    def destroy(self) -> None:
        """Frees the storage. Until the next `assign`, whoever reads the handle gets TensorFlow's error, not numbers."""
        gen.destroy_resource_op(self.handle, ignore_lookup_error=True)


def take_over(variable: ResourceVariable) -> Resource:
    """Gives a new variable a handle whose storage can be destroyed. The value moves; nothing is copied."""
    old = variable._handle
    resource = Resource(variable.shape, variable.dtype, old.device, variable._handle_name.removesuffix(":0"))
    resource.assign(gen.read_variable_op(old, variable.dtype))
    resource.handle._handle_data = old._handle_data
    for name in ("_parent_trackable", "_name", "_unique_id"):
        setattr(resource.handle, name, getattr(old, name))
    variable._handle = resource.handle
    return resource


def make_without_storage(
    variable: ResourceVariable,
    shape: tf.TensorShape,
    dtype: tf.DType,
    *,
    name: str | None = None,
    trainable: bool | None = None,
    synchronization: tf.VariableSynchronization | None = None,
    aggregation: tf.VariableAggregation | None = None,
    constraint: Callable | None = None,
    distribute_strategy: object = None,
    **others: object,
) -> Resource:
    """Does for a variable what its `__init__` would, but for the value. `others` mean nothing where ops run eagerly."""
    synchronization, aggregation, trainable = variables.validate_synchronization_aggregation_trainable(
        synchronization, aggregation, trainable, name
    )
    with tf.init_scope(), ops.name_scope(name, "Variable", skip_on_eager=False) as scope:
        handle_name = ops.name_from_scope_name(scope)
        resource = Resource(shape, dtype, "", handle_name)
        resource.handle._parent_trackable = weakref.ref(variable)
        resource.handle._name = handle_name + ":0"
        resource.handle._unique_id = f"{handle_name}_{ops.uid()}"
        variable._in_graph_mode = False
    BaseResourceVariable.__init__(
        variable,
        trainable=trainable,
        shape=shape,
        dtype=dtype,
        handle=resource.handle,
        synchronization=synchronization,
        aggregation=aggregation,
        constraint=constraint,
        distribute_strategy=distribute_strategy,
        name=scope,
        unique_id=resource.handle._unique_id,
        handle_name=handle_name,
    )
    return resource


def is_stateful(type: str) -> bool:
    """Whether an op of this type may read or change more than its inputs; so may those that TensorFlow lacks."""
    found = op_def_registry.get(type)
    return found is None or found.is_stateful


class NoHandle:
    """Stands in a variable's `_handle` while the handle has no storage.

    TensorFlow's eager fast path reads a variable that is an op's argument from `_handle`, in C++, when that is an
    eager tensor; otherwise it converts the variable in Python, which gathers. Everything else goes by `handle`.
    """

    def __init__(self, handle: tf.Tensor) -> None:
        self._id = handle._id  # which variable it is, to `tf.function`'s signatures


def hide_handle(variable: BaseResourceVariable, handle: tf.Tensor) -> None:
    variable._handle = NoHandle(handle)


def show_handle(variable: BaseResourceVariable, handle: tf.Tensor) -> None:
    variable._handle = handle


def record_read(variable: BaseResourceVariable, value: tf.Tensor) -> None:
    """Tells the tapes that `value` was read from a variable, as TensorFlow does for its own reads."""
    record.record_operation(
        "ReadVariableOp",
        [value],
        [variable.handle],
        backward_function=lambda gradient: [gradient],
        forward_function=lambda tangent: [tangent],
    )


def stop_recording():
    """A context in which tapes record nothing."""
    return record.stop_recording()


def add_variable_creator(creator: Callable[..., tf.Variable]) -> None:
    """Makes this thread's default graph ask `creator` for variables, as `tf.variable_creator_scope` does, for good.

    The list is changed and not replaced: a scope of the user's that is open finds it as it left it. An open
    `tf.variable_creator_scope` would have to be closed by the thread that opened it, and threads end without a word.
    """
    creators = ops.get_default_graph()._variable_creator_stack
    if not any(one is creator for _, one in creators):
        creators.append((_PRIORITY, creator))
        creators.sort(key=lambda pair: pair[0])


def remove_variable_creator(creator: Callable[..., tf.Variable]) -> None:
    creators = ops.get_default_graph()._variable_creator_stack
    creators[:] = [pair for pair in creators if pair[1] is not creator]


def add_function_callback(callback: Callable[[tf.types.experimental.ConcreteFunction], None]) -> None:
    """Has `callback` called with every `ConcreteFunction` that is traced from now on."""
    if callback not in transform.CONCRETE_FUNCTION_CALLBACKS:
        transform.CONCRETE_FUNCTION_CALLBACKS.append(callback)


def remove_function_callback(callback: Callable) -> None:
    if callback in transform.CONCRETE_FUNCTION_CALLBACKS:
        transform.CONCRETE_FUNCTION_CALLBACKS.remove(callback)


def captured_inputs(function: tf.types.experimental.ConcreteFunction) -> list:
    """What a traced function captured, one entry per captured input, in order; an entry may be a callable."""
    return function._captured_inputs


def captured_placeholders(function: tf.types.experimental.ConcreteFunction) -> list[tf.Tensor]:
    """The tensors in the function's graph that stand for `captured_inputs`, in the same order."""
    count = len(function._captured_inputs)
    return function.graph.inputs[len(function.graph.inputs) - count :]


def variable_of(handle: object) -> object:
    """The variable that a captured handle belongs to, or None."""
    if not isinstance(handle, EagerTensor) or handle.dtype != tf.resource:
        return None
    parent = getattr(handle, "_parent_trackable", None)
    return parent() if parent is not None else None


@contextlib.contextmanager
def unoptimized() -> Iterator[None]:
    """Functions called inside, by this thread, run as they are, without TensorFlow's graph optimizer."""
    config = config_pb2.ConfigProto(allow_soft_placement=True)
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    before = context.context().function_call_options
    context.context().function_call_options = context.FunctionCallOptions(config_proto=config)
    try:
        yield
    finally:
        context.context().function_call_options = before
