"""Reads and writes of variables, and the optimizer kernels that update them in place.

A resource tensor has the layout of its variable: each part's handle is the variable that holds that part.
"""

from __future__ import annotations

from whaleish.rules.forms import at, names, numeric
from whaleish.rules.rule import Lowering, OpView, Ref, Signature, TensorSpec, registry
from whaleish.sbp import B, P, S, Sbp


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


# Scatters: variable, indices, updates. --------------------------------------------------------------------------------


@registry.register(*(f"ResourceScatter{name}" for name in names("Div Max Min Mul Update")), lower=lower_unless_empty)
def scatter(op: OpView) -> list[Signature]:
    return other_dims(op, 1, op.inputs[1].rank)


@registry.register("ResourceScatterNdMax", "ResourceScatterNdMin", "ResourceScatterNdUpdate", lower=lower_unless_empty)
def scatter_nd(op: OpView) -> list[Signature]:
    shape = op.inputs[1].shape
    return other_dims(op, shape[-1], len(shape) - 1) if shape else []


@registry.register("ResourceScatterNdAdd", "ResourceScatterNdSub", lower=lower_unless_empty)
def scatter_nd_sums(op: OpView) -> list[Signature]:
    return scatter_nd(op) + sums(op, op.inputs[1].rank - 1)


def lower_scatter_rows(part: Lowering) -> list[Ref]:
    """Of rows held by other parts, adds zero to the first row."""
    op, rows, start = part.op, part.shape_in(0)[0], part.start_in(0)[0]
    if rows == (op.inputs[0].shape or ())[0] or not rows:
        return lower_unless_empty(part)
    number, value = op.inputs[1].dtype, op.inputs[2].dtype
    zero = part.const(0, number)
    row = part.emit("Sub", [part.input(1), part.const(start, number)], T=number)
    inside = part.emit(
        "LogicalAnd",
        [
            part.emit("GreaterEqual", [row, zero], T=number),
            part.emit("Less", [row, part.const(rows, number)], T=number),
        ],
    )
    row = part.emit("SelectV2", [inside, row, zero], T=number)
    wide = part.const((*part.shape_in(1), *(1 for _ in part.shape_in(0)[1:])), "int32")
    inside = part.emit("Reshape", [inside, wide], T="bool", Tshape="int32")
    update = part.emit("SelectV2", [inside, part.input(2), part.const(0, value)], T=value)
    return part.same({1: row, 2: update})


@registry.register("ResourceScatterAdd", "ResourceScatterSub", lower=lower_scatter_rows)
def scatter_sums(op: OpView) -> list[Signature]:
    """Also with the rows themselves split: each part looks through all updates for its own."""
    table, indices, updates = op.inputs
    rows = [Signature((S(0), B, B), ())] if updates.rank and table.rank else []
    return [*rows, *other_dims(op, 1, indices.rank), *sums(op, indices.rank)]


def other_dims(op: OpView, depth: int, index_rank: int) -> list[Signature]:
    """Splits of the dims behind the `depth` ones that the indices address; updates have them behind the indices'."""
    table, _, updates = op.inputs
    return [
        Signature((S(dim), B, S(dim - depth + index_rank) if updates.rank else B), ())
        for dim in range(depth, table.rank)
    ]


def sums(op: OpView, index_rank: int) -> list[Signature]:
    """A variable of summands takes each update in one summand, or a summand of each update in all."""
    whole = not op.inputs[2].rank  # One number for all updates.
    found = [Signature((P, S(dim), B if whole else S(dim)), ()) for dim in range(index_rank)]
    return [*found, Signature((P, B, P), ())]
