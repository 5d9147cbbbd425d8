"""Floating-point operations and bytes of an op, from shapes alone."""

from __future__ import annotations

from math import prod

from whaleish.graph import layout_bytes
from whaleish.rules.control import CONTROL
from whaleish.rules.rule import OpView

_CONVOLUTIONS = ("Conv2D", "Conv3D", "DepthwiseConv2dNative")
_INPUT_GRADIENTS = ("Conv2DBackpropInput", "Conv3DBackpropInputV2", "DepthwiseConv2dNativeBackpropInput")
_FILTER_GRADIENTS = ("Conv2DBackpropFilter", "Conv3DBackpropFilterV2", "DepthwiseConv2dNativeBackpropFilter")
_MATMULS = ("MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3")
_FREE_TEXT = "Const ExpandDims Identity NoOp Placeholder PreventGradient ReadVariableOp Reshape Squeeze StopGradient"
_FREE = frozenset(_FREE_TEXT.split())


def _is_free(op: OpView) -> bool:
    """Whether an op only says what a tensor is or where it goes (into a list, round a loop)."""
    return op.type in _FREE or op.type in CONTROL or any(s.dtype == "variant" for s in (*op.inputs, *op.outputs))


def flops(op: OpView) -> float:
    """Multiply-adds count as two; everything that is not a product counts one per element it reads or writes."""
    if _is_free(op) or any(spec.shape is None for spec in (*op.inputs, *op.outputs)):
        return 0.0
    shapes = [spec.shape or () for spec in op.inputs]
    out = float(prod(op.outputs[0].shape or ())) if op.outputs else 0.0
    if op.type in _MATMULS:
        transposed = op.attrs.get("transpose_a") or op.attrs.get("adj_x")
        return 2.0 * out * shapes[0][-2 if transposed else -1]
    if op.type == "Einsum" and len(shapes) == 2:
        return 2.0 * _einsum_size(str(op.attrs["equation"]), shapes, out)
    if op.type in _CONVOLUTIONS:
        return 2.0 * _convolution_size(op.type, shapes[1], out)
    if op.type in _INPUT_GRADIENTS:
        return 2.0 * _convolution_size(op.type, shapes[1], float(prod(shapes[2])))
    if op.type in _FILTER_GRADIENTS:
        return 2.0 * _convolution_size(op.type, op.outputs[0].shape or (), float(prod(shapes[2])))
    return max([out, *(float(prod(shape)) for shape in shapes)])


def bytes_touched(op: OpView) -> float:
    """Bytes read and written once."""
    if _is_free(op):
        return 0.0
    specs = (*op.inputs, *op.outputs)
    return float(sum(layout_bytes(spec.shape, spec.dtype) for spec in specs if spec.shape is not None))


def _convolution_size(type: str, filters: tuple[int, ...], out: float) -> float:
    """Multiplications of a convolution whose (forward) output has `out` elements."""
    return out * prod(filters[:-2]) * (1 if type.startswith("Depthwise") else filters[-2])


def _einsum_size(equation: str, shapes: list[tuple[int, ...]], out: float) -> float:
    """Product of the lengths of all labels; with an ellipsis, the output times the contracted labels."""
    operands, _, result = equation.partition("->")
    lengths: dict[str, int] = {}
    for labels, shape in zip(operands.split(","), shapes, strict=True):
        before, _, after = labels.partition("...")
        lengths.update(zip(before, shape, strict=False))
        if after:
            lengths.update(zip(after, shape[-len(after) :], strict=True))
    return out * prod(length for label, length in lengths.items() if label not in result)
