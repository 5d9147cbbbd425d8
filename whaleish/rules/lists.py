"""Lists of tensors, as loops carry them. The layout of a list is that of its elements, and its shape is their shape.

A list of lists has the layout and the shape of the elements of those. An optional, with which a condition hands values
to its gradient, counts as a list of one or no element.
"""

from __future__ import annotations

from whaleish.rules.control import layouts
from whaleish.rules.forms import Lower, at
from whaleish.rules.rule import Lowering, OpView, Ref, Signature, registry
from whaleish.sbp import B, S, Sbp


def stacked(sbp: Sbp) -> Sbp:
    """The layout of elements one behind another, from that of one."""
    return S(sbp.dim + 1, sbp.unit) if sbp.is_split else sbp


def with_local_shape(place: int) -> Lower:
    """Carries out a part with input `place`, the shape of an element, replaced by that of the part's elements."""

    def lower(part: Lowering) -> list[Ref]:
        if part.op.attrs["element_dtype"] == "variant":
            return part.same()  # lists have no shape of their own
        dtype = part.op.inputs[place].dtype
        return part.same({place: part.const(element_shape(part), dtype)})

    return lower


def element_shape(part: Lowering) -> tuple[int, ...]:
    """The local shape of an element of the list that an op makes, or else reads."""
    for index, spec in enumerate(part.op.outputs):
        if spec.dtype == "variant":
            return part.shape_out(index)
    return part.shape_in(0)


@registry.register("TensorListReserve", "EmptyTensorList", lower=with_local_shape(0))
def made(op: OpView) -> list[Signature]:
    return [Signature((B, B), (sbp,)) for sbp in layouts(op.outputs[0])]


@registry.register("TensorListSetItem")
def set_item(op: OpView) -> list[Signature]:
    return [Signature(at(3, 0, 2, sbp=sbp) + (B,) * (len(op.inputs) - 3), (sbp,)) for sbp in layouts(op.inputs[0])]


@registry.register("TensorListPushBack")
def push(op: OpView) -> list[Signature]:
    return [Signature((sbp, sbp), (sbp,)) for sbp in layouts(op.inputs[0])]


@registry.register("TensorListGetItem", lower=with_local_shape(2))
def get_item(op: OpView) -> list[Signature]:
    return [Signature((sbp, B, B), (sbp,)) for sbp in layouts(op.inputs[0])]


@registry.register("TensorListPopBack", lower=with_local_shape(1))
def pop(op: OpView) -> list[Signature]:
    return [Signature((sbp, B), (sbp, sbp)) for sbp in layouts(op.inputs[0])]


@registry.register("TensorListStack", lower=with_local_shape(1))
def stack(op: OpView) -> list[Signature]:
    return [Signature((sbp, B), (stacked(sbp),)) for sbp in layouts(op.inputs[0])]


@registry.register("TensorListFromTensor", lower=with_local_shape(1))
def unstack(op: OpView) -> list[Signature]:
    return [Signature((stacked(sbp), B), (sbp,)) for sbp in layouts(op.outputs[0])]


@registry.register("TensorListLength")
def length(op: OpView) -> list[Signature]:
    return [Signature((sbp,), (B,)) for sbp in layouts(op.inputs[0])]


@registry.register("TensorListResize")
def resize(op: OpView) -> list[Signature]:
    return [Signature((sbp, B), (sbp,)) for sbp in layouts(op.inputs[0])]


@registry.register("TensorListGather", lower=with_local_shape(2))
def gather(op: OpView) -> list[Signature]:
    return [Signature((sbp, B, B), (stacked(sbp),)) for sbp in layouts(op.inputs[0])]


@registry.register("TensorListScatterV2", lower=with_local_shape(2))
def scatter(op: OpView) -> list[Signature]:
    return [Signature((stacked(sbp), B, B, B), (sbp,)) for sbp in layouts(op.outputs[0])]


# Optionals. -----------------------------------------------------------------------------------------------------------


@registry.register("OptionalFromValue")
def some(op: OpView) -> list[Signature]:
    return [Signature((sbp,), (sbp,)) for sbp in layouts(op.outputs[0])] if len(op.inputs) == 1 else []


@registry.register("OptionalNone")
def none(op: OpView) -> list[Signature]:
    return [Signature((), (sbp,)) for sbp in layouts(op.outputs[0])]


def lower_value(part: Lowering) -> list[Ref]:
    variant = part.op.outputs[0].dtype == "variant"
    return part.same() if variant else part.same(output_shapes=[part.shape_out(0)])


@registry.register("OptionalGetValue", lower=lower_value)
def value(op: OpView) -> list[Signature]:
    return [Signature((sbp,), (sbp,)) for sbp in layouts(op.inputs[0])] if len(op.outputs) == 1 else []
