"""Operator signatures, one file per family of ops. Importing the package fills the registry."""

from whaleish.rules import (  # noqa: F401
    control,
    convolution,
    counting,
    elementwise,
    gather,
    images,
    joining,
    lists,
    local,
    losses,
    matmul,
    matrices,
    normalisation,
    pooling,
    quantization,
    random,
    ranking,
    recurrent,
    reduction,
    scans,
    scatter,
    segments,
    shape,
    slicing,
    sparse,
    text,
    updates,
    variables,
)
from whaleish.rules.rule import OpView, Rule, Signature, TensorSpec, registry

__all__ = ["OpView", "Rule", "Signature", "TensorSpec", "registry"]
