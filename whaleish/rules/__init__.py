"""Operator signatures, one file per family of ops. Importing the package fills the registry."""

from whaleish.rules import (  # noqa: F401
    control,
    convolution,
    elementwise,
    gather,
    images,
    joining,
    lists,
    local,
    losses,
    matmul,
    matrices,
    pooling,
    random,
    reduction,
    scatter,
    segments,
    shape,
    slicing,
    variables,
)
from whaleish.rules.rule import OpView, Rule, Signature, TensorSpec, registry

__all__ = ["OpView", "Rule", "Signature", "TensorSpec", "registry"]
