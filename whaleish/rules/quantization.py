"""Rounding to a few levels and back, as training for quantized inference does, and its gradients."""

from __future__ import annotations

from whaleish.rules.forms import all_split
from whaleish.rules.rule import OpView, Signature, registry
from whaleish.sbp import B, P, S, Sbp


@registry.register("FakeQuantWithMinMaxArgs", "FakeQuantWithMinMaxVars", "FakeQuantWithMinMaxVarsPerChannel")
def fake_quantization(op: OpView) -> list[Signature]:
    """Between limits that are attributes, scalars, or vectors over the last dim."""
    return all_split(op)


@registry.register("FakeQuantWithMinMaxArgsGradient")
def fake_quantization_gradient(op: OpView) -> list[Signature]:
    """Of the gradient, in which it is linear, and the inputs."""
    return [*all_split(op), Signature((P, B), (P,))]


@registry.register("FakeQuantWithMinMaxVarsGradient", "FakeQuantWithMinMaxVarsPerChannelGradient")
def limits_gradient(op: OpView) -> list[Signature]:
    """Of gradient, inputs and two limits -> gradients of the inputs and of the limits.

    Those of the limits are sums over all dims but that of the channels, where the limits are vectors over it.
    """
    rank = op.inputs[0].rank
    channel = rank - 1 if op.type.endswith("PerChannelGradient") else -1
    found = [Signature((P, B, B, B), (P, P, P))]
    for dim in range(rank):
        limit, summed = (S(0), S(0)) if dim == channel else (B, P)
        found.append(Signature((S(dim), S(dim), limit, limit), (S(dim), summed, summed)))
    return found


@registry.register("QuantizeAndDequantizeV2", "QuantizeAndDequantizeV3", "QuantizeAndDequantizeV4")
def there_and_back(op: OpView) -> list[Signature]:
    """Of a tensor, two limits and, in V3, the number of bits.

    Limits that are not given are those of the whole tensor, or of each slice along `axis`.
    """
    bits = (B,) * (len(op.inputs) - 3)
    return [
        Signature((S(dim), limit, limit, *bits), (S(dim),))
        for dim, limit in _free_dims(op, 1)
        if op.attrs["range_given"] or dim == op.attrs["axis"]
    ]


@registry.register("QuantizeAndDequantizeV4Grad")
def there_and_back_gradient(op: OpView) -> list[Signature]:
    """Of gradient, inputs and two limits -> the gradient where the input is within the limits; zeros for the limits."""
    found = [Signature((S(dim), S(dim), limit, limit), (S(dim), limit, limit)) for dim, limit in _free_dims(op, 2)]
    return [*found, Signature((P, B, B, B), (P, B, B))]


def _free_dims(op: OpView, limits: int) -> list[tuple[int, Sbp]]:
    """The dims of the tensor, each with the layout of the limits, which are vectors over `axis` if there is one."""
    axis, limit = int(op.attrs["axis"]), op.inputs[limits]
    return [
        (dim, S(0) if dim == axis and limit.shape == (length,) else B)
        for dim, length in enumerate(op.inputs[0].shape or ())
    ]
