"""Ops that compute each element of their output from the elements at the same place.

Every dim may be split. Beyond that a type is listed for what it keeps: `linear` ones map summands to summands,
`rising` ones map a maximum of parts to the maximum of the mapped parts (`falling` ones to the minimum). Only functions
that are defined for all numbers are listed as rising: the parts of a maximum may be where `Log` or `Sqrt` is not.
"""

from __future__ import annotations

from whaleish.rules.forms import FLOATS, all_split, at, broadcast_splits, names, numeric, real
from whaleish.rules.rule import Lowering, OpView, Ref, Signature, registry
from whaleish.sbp import PMAX, PMIN, B, P, S

UNARY = names("""
    Abs Acos Acosh Angle Asin Atanh BesselI0 BesselI0e BesselI1 BesselI1e BesselJ0 BesselJ1 BesselK0 BesselK0e BesselK1
    BesselK1e BesselY0 BesselY1 Bucketize ComplexAbs Cos Cosh Dawsn Digamma Erfinv Expint FresnelCos FresnelSin Inv
    Invert IsFinite IsInf IsNan Lgamma Log Log1p LogicalNot Ndtri PopulationCount Reciprocal Rsqrt Sin Spence Sqrt
    Square Tan
""")
COPIES = names("CheckNumerics CheckNumericsV2 DeepCopy GuaranteeConst Identity PreventGradient Snapshot StopGradient")
LINEAR = COPIES + names("Conj Imag Neg Real")
RISING = COPIES + names("""
    Asinh Atan Ceil Elu Erf Exp Expm1 Floor LeakyRelu Relu Relu6 Rint Round Selu Sigmoid Sign Sinh Softplus Softsign
    Tanh
""")
FALLING = ["Erfc", "Neg"]


@registry.register(*sorted({*UNARY, *LINEAR, *RISING, *FALLING}))
def unary(op: OpView) -> list[Signature]:
    found = all_split(op)
    (x,) = op.inputs
    if op.type in LINEAR and numeric(x):
        found.append(Signature((P,), (P,)))
    if op.type in RISING and real(x) and op.attrs.get("alpha", 0.0) >= 0:
        found += [Signature((PMAX,), (PMAX,)), Signature((PMIN,), (PMIN,))]
    if op.type in FALLING and real(x):
        found += [Signature((PMAX,), (PMIN,)), Signature((PMIN,), (PMAX,))]
    return found


@registry.register("Cast")
def cast(op: OpView) -> list[Signature]:
    """Between floats the order is kept, and sums too unless digits are lost. Integers may wrap, so they keep none."""
    found = all_split(op)
    before, after = op.inputs[0].dtype, op.outputs[0].dtype
    if before in FLOATS and after in FLOATS:
        if FLOATS[before] < FLOATS[after] or before == after:
            found.append(Signature((P,), (P,)))
        found += [Signature((PMAX,), (PMAX,)), Signature((PMIN,), (PMIN,))]
    return found


@registry.register("OnesLike", "ZerosLike")
def like(op: OpView) -> list[Signature]:
    """Only the shape is read, and every summand has it."""
    found = all_split(op)
    if numeric(op.inputs[0]):
        found.append(Signature((P,), (B,)))
    if real(op.inputs[0]):
        found += [Signature((PMAX,), (B,)), Signature((PMIN,), (B,))]
    return found


# Binary, with broadcasting. -------------------------------------------------------------------------------------------

BINARY = names("""
    Atan2 BitwiseAnd BitwiseOr BitwiseXor Complex Equal FloorDiv FloorMod Greater GreaterEqual Igamma IgammaGradA
    Igammac LeftShift Less LessEqual LogicalAnd LogicalOr Mod NextAfter NotEqual Pow RandomGammaGrad RightShift
    SquaredDifference TruncateDiv TruncateMod Xdivy Xlog1py Xlogy
""")
SUMS = ["Add", "AddV2", "Sub"]
PRODUCTS = ["Mul", "MulNoNan"]
QUOTIENTS = ["Div", "DivNoNan", "RealDiv"]


@registry.register(*BINARY)
def binary(op: OpView) -> list[Signature]:
    return all_split(op)


@registry.register(*SUMS)
def sums(op: OpView) -> list[Signature]:
    """Linear in both together: P, B is not legal, as B would be added once for each part."""
    found = all_split(op)
    if numeric(op.inputs[0]):
        found.append(Signature((P, P), (P,)))
    if op.inputs[0].dtype in FLOATS:
        # A shifted maximum is the maximum of what is shifted; not so for integers, which wrap.
        up, down = (PMIN, PMAX) if op.type == "Sub" else (PMAX, PMIN)
        found += [Signature((PMAX, B), (PMAX,)), Signature((PMIN, B), (PMIN,))]
        found += [Signature((B, PMAX), (up,)), Signature((B, PMIN), (down,))]
    return found


@registry.register(*PRODUCTS)
def products(op: OpView) -> list[Signature]:
    """Linear in each by itself. A sum of products of summands is not the product of the sums."""
    found = all_split(op)
    if numeric(op.inputs[0]):
        found.append(Signature((P, B), (P,)))
        if op.type == "Mul":  # MulNoNan(x, y) is 0 where y is 0: where the whole of y is, not where a summand is.
            found.append(Signature((B, P), (P,)))
    return found


@registry.register(*QUOTIENTS)
def quotients(op: OpView) -> list[Signature]:
    found = all_split(op)
    if op.inputs[0].dtype in FLOATS or op.inputs[0].dtype.startswith("complex"):
        found.append(Signature((P, B), (P,)))
    return found


@registry.register("Maximum", "Minimum")
def extremes(op: OpView) -> list[Signature]:
    """Both keep their own kind, and the other kind against a value that all parts have."""
    found = all_split(op)
    own = PMAX if op.type == "Maximum" else PMIN
    found.append(Signature((own, own), (own,)))
    for kind in (PMAX, PMIN):
        found += [Signature((kind, B), (kind,)), Signature((B, kind), (kind,))]
    return found


@registry.register("ApproximateEqual", "Betainc", "Polygamma", "Zeta")
def same_shape(op: OpView) -> list[Signature]:
    return all_split(op)


# Gradients of unary ops, linear in the gradient that comes in. --------------------------------------------------------

GRADIENT_FIRST = names("EluGrad LeakyReluGrad Relu6Grad ReluGrad SeluGrad SoftplusGrad SoftsignGrad")
GRADIENT_SECOND = names("InvGrad ReciprocalGrad RsqrtGrad SigmoidGrad SqrtGrad TanhGrad")


@registry.register(*GRADIENT_FIRST, *GRADIENT_SECOND)
def unary_gradient(op: OpView) -> list[Signature]:
    return [*all_split(op), Signature(at(2, int(op.type in GRADIENT_SECOND), sbp=P), (P,))]


# Several inputs. ------------------------------------------------------------------------------------------------------


def lower_accumulate(part: Lowering) -> list[Ref]:
    """AccumulateNV2 carries the logical shape as an attribute; AddN is the same sum."""
    count = len(part.op.inputs)
    return [part.emit("AddN", [part.input(i) for i in range(count)], N=count, T=part.op.inputs[0].dtype)]


def add_all(op: OpView) -> list[Signature]:
    return [*all_split(op), Signature((P,) * len(op.inputs), (P,))]


registry.register("AddN")(add_all)
registry.register("AccumulateNV2", lower=lower_accumulate)(add_all)


MOST_ALONE = 8
"""Inputs of an `IdentityN` that are offered layouts by themselves."""


@registry.register("IdentityN")
def identity_each(op: OpView) -> list[Signature]:
    """Each input stands for itself. Offered are a layout for one of them, and the same layout for all that can have it.

    All mixtures would be too many (Keras makes such ops of hundreds of inputs); a front end does well to write the op
    out as an `Identity` for each input.
    """
    found = []
    for index, spec in enumerate(op.inputs[:MOST_ALONE]):
        if numeric(spec):
            together = tuple(P if numeric(other) else B for other in op.inputs)
            found += [at(len(op.inputs), index, sbp=P), together]
        for dim, length in enumerate(spec.shape or ()):
            alike = (i for i, other in enumerate(op.inputs) if (other.shape or ())[dim : dim + 1] == (length,))
            found += [at(len(op.inputs), index, sbp=S(dim)), at(len(op.inputs), *alike, sbp=S(dim))]
    return [Signature(sbps, sbps) for sbps in dict.fromkeys(found)]


@registry.register("Select")
def select(op: OpView) -> list[Signature]:
    """The condition has the shape of the branches, or is a vector over their first dim, or a scalar."""
    condition, *branches = op.inputs
    if condition.rank in (0, branches[0].rank):
        return all_split(op) + linear_in_branches(op)
    found = [Signature((S(0) if dim == 0 else B, S(dim), S(dim)), (S(dim),)) for dim in range(branches[0].rank)]
    return found + linear_in_branches(op)


@registry.register("SelectV2")
def select_broadcasting(op: OpView) -> list[Signature]:
    return all_split(op) + linear_in_branches(op)


def linear_in_branches(op: OpView) -> list[Signature]:
    """Under a condition that all parts have, a selection among summands is a summand of the selection."""
    branch = op.inputs[1]
    kinds = ([P] if numeric(branch) else []) + ([PMAX, PMIN] if real(branch) else [])
    return [Signature((B, kind, kind), (kind,)) for kind in kinds]


@registry.register("ClipByValue")
def clip(op: OpView) -> list[Signature]:
    """The bounds have the shape of the tensor or are scalars."""
    found = [Signature(inputs, (output,)) for inputs, output in broadcast_splits(op.inputs, op.outputs[0])]
    return found + [Signature((kind, B, B), (kind,)) for kind in (PMAX, PMIN)]
