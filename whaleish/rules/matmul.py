"""Products summed over shared dims: matrix products, Einsum, and the bias that is added to them.

All are told by one thing: which dims of the inputs and of the output are the same. With a letter for each,

    MatMul             mk, kn -> mn         a letter of the output is split there and where it occurs,
    with transpose_a   km, kn -> mn         a letter that is summed away is split where it occurs -> P,
    BatchMatMulV2   ...mk, ...kn -> ...mn   and the product is linear in each input.
"""

from __future__ import annotations

from collections.abc import Sequence

from whaleish.rules.forms import at, channel_dim
from whaleish.rules.rule import OpView, Signature, TensorSpec, registry
from whaleish.sbp import B, P, S, Sbp

BATCH = "0123456789"
"""Letters for leading dims that broadcast, the last one of them "0"."""


def contraction(op: OpView, inputs: Sequence[str], output: str) -> list[Signature]:
    """Signatures of a sum of products, given a letter for each dim."""
    specs, made = op.inputs, op.outputs[0]
    found = []
    for letter in dict.fromkeys((*output, *"".join(inputs))):
        places = [_places(letters, letter, spec) for letters, spec in zip(inputs, specs, strict=True)]
        if any(place is None for place in places) or output.count(letter) > 1:
            continue  # A diagonal: its elements do not lie in one split of the tensor.
        length = max(spec.shape[place] for spec, place in zip(specs, places, strict=True) if spec.shape and place != -1)  # type: ignore[index]
        if letter in output and made.shape and made.shape[output.index(letter)] != length:
            continue
        sbps = tuple(
            S(place) if place is not None and place >= 0 and spec.shape and spec.shape[place] == length else B
            for spec, place in zip(specs, places, strict=True)
        )
        if letter not in output and any(place != -1 and sbp == B for place, sbp in zip(places, sbps, strict=True)):
            continue
        found.append(Signature(sbps, (S(output.index(letter)) if letter in output else P,)))
    return found + linear(op)


def _places(letters: str, letter: str, spec: TensorSpec) -> int | None:
    """Which dim has the letter; -1 for none, None for several."""
    return None if letters.count(letter) > 1 else letters.find(letter)


def linear(op: OpView) -> list[Signature]:
    """P in one input, unless the op widens the dtype: small summands may have wrapped."""
    alike = (i for i, spec in enumerate(op.inputs) if spec.dtype == op.outputs[0].dtype)
    return [Signature(at(len(op.inputs), i, sbp=P), (P,)) for i in alike]


@registry.register("MatMul", "SparseMatMul")
def matmul(op: OpView) -> list[Signature]:
    left = "km" if op.attrs.get("transpose_a") else "mk"
    right = "nk" if op.attrs.get("transpose_b") else "kn"
    return contraction(op, (left, right), "mn")


@registry.register("BatchMatMul", "BatchMatMulV2", "BatchMatMulV3")
def batch_matmul(op: OpView) -> list[Signature]:
    if op.inputs[0].rank < 2 or op.inputs[1].rank < 2:
        return []
    left = "km" if op.attrs.get("adj_x") else "mk"
    right = "nk" if op.attrs.get("adj_y") else "kn"
    letters = [batch(spec.rank - 2) + own for spec, own in zip(op.inputs, (left, right), strict=True)]
    return contraction(op, letters, batch(op.outputs[0].rank - 2) + "mn")


def batch(count: int) -> str:
    """Letters of the leading dims that broadcast, right-aligned."""
    return BATCH[:count][::-1]


@registry.register("Einsum")
def einsum(op: OpView) -> list[Signature]:
    """From the equation; its letters are as in NumPy, an ellipsis stands for leading dims that broadcast."""
    left, arrow, output = str(op.attrs["equation"]).replace(" ", "").partition("->")
    inputs = left.split(",")
    ranks = [spec.rank for spec in op.inputs]
    if not arrow or len(inputs) != len(ranks) or min(ranks) < 0 or ("..." in left and "..." not in output):
        return []
    letters = [_spelled(text, spec) for text, spec in zip((*inputs, output), (*op.inputs, *op.outputs), strict=True)]
    return contraction(op, letters[:-1], letters[-1])


def _spelled(text: str, spec: TensorSpec) -> str:
    """The letters with the ellipsis written out."""
    return text.replace("...", batch(spec.rank - len(text.replace("...", ""))))


@registry.register("BiasAdd", "BiasAddV1")
def bias_add(op: OpView) -> list[Signature]:
    """The bias is a vector over the channels."""
    rank = op.outputs[0].rank
    channel = channel_dim(op, rank)
    found = [Signature((S(dim), S(0) if dim == channel else B), (S(dim),)) for dim in range(rank)]
    return [*found, Signature((P, P), (P,))]


@registry.register("BiasAddGrad")
def bias_add_gradient(op: OpView) -> list[Signature]:
    """Sums over every dim but the channels."""
    rank = op.inputs[0].rank
    channel = channel_dim(op, rank)
    outputs: list[Sbp] = [S(0) if dim == channel else P for dim in range(rank)]
    return [*(Signature((S(dim),), (output,)) for dim, output in enumerate(outputs)), Signature((P,), (P,))]
