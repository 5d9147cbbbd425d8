"""Reads and writes of variables, and the optimizer kernels that update them in place.

A resource tensor has the layout of its variable: each part's handle is the variable that holds that part.
"""

from __future__ import annotations

from whaleish.rules.forms import at, names, numeric
from whaleish.rules.rule import Lowering, OpView, Ref, Signature, TensorSpec, registry
from whaleish.sbp import B, P, S, Sbp

READS = frozenset(["ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VariableShape", "VarIsInitializedOp"])
"""Ops that leave a variable as it is."""


def held(spec: TensorSpec) -> list[Sbp]:
    """Layouts that a variable's storage may have besides B."""
    return [*map(S, range(spec.rank))]


@registry.register("ReadVariableOp")
def read(op: OpView) -> list[Signature]:
    return [Signature((sbp,), (sbp,)) for sbp in (*held(op.inputs[0]), *summands(op.outputs[0]))]


def summands(value: TensorSpec) -> list[Sbp]:
    return [P] if numeric(value) else []


@registry.register("AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp")
def assign(op: OpView) -> list[Signature]:
    """Linear in the variable and the value together."""
    return [Signature((sbp, sbp), ()) for sbp in (*held(op.inputs[0]), *summands(op.inputs[1]))]


@registry.register("VarIsInitializedOp")
def is_initialized(op: OpView) -> list[Signature]:
    """The parts of a variable are initialised together."""
    return [Signature((sbp,), (B,)) for sbp in (*held(op.inputs[0]), P)]


def lower_unless_empty(part: Lowering) -> list[Ref]:
    """Nothing is done to a part without elements; many kernels refuse it."""
    return [] if 0 in part.shape_in(0) else part.same()


OPTIMIZERS = names("""
    Adadelta Adagrad AdagradDA AdagradV2 Adam AdamWithAmsgrad AdaMax AddSign CenteredRMSProp Ftrl FtrlV2 GradientDescent
    KerasMomentum Momentum PowerSign ProximalAdagrad ProximalGradientDescent RMSProp
""")
SPARSE_OPTIMIZERS = names("""
    Adadelta Adagrad AdagradDA AdagradV2 CenteredRMSProp Ftrl FtrlV2 KerasMomentum Momentum ProximalAdagrad
    ProximalGradientDescent RMSProp
""")


def tensors(op: OpView) -> list[int]:
    """Inputs of an optimizer kernel but its scalar settings: variables, gradient, and indices if it has any."""
    return [index for index, spec in enumerate(op.inputs) if spec.dtype == "resource" or spec.rank > 0]


@registry.register(*(f"ResourceApply{name}" for name in OPTIMIZERS))
def optimizer(op: OpView) -> list[Signature]:
    """Elementwise in the variable, its slots and the gradient, which have one shape."""
    together = tensors(op)
    return [Signature(at(len(op.inputs), *together, sbp=sbp), ()) for sbp in held(op.inputs[0])]


@registry.register(*(f"ResourceSparseApply{name}" for name in SPARSE_OPTIMIZERS), lower=lower_unless_empty)
def sparse_optimizer(op: OpView) -> list[Signature]:
    """Updates some rows. Each row is updated elementwise; the rows are named by indices into the whole variable."""
    indices = next(i for i, spec in enumerate(op.inputs) if spec.rank == 1 and spec.dtype in ("int32", "int64"))
    together = [index for index in tensors(op) if index != indices]
    return [Signature(at(len(op.inputs), *together, sbp=S(dim)), ()) for dim in range(1, op.inputs[0].rank)]
