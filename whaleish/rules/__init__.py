"""Operator signatures, one file per family of ops. Importing the package fills the registry."""

from whaleish.rules import (  # noqa: F401
    elementwise,
    gather,
    joining,
    random,
    scatter,
    segments,
    shape,
    slicing,
)
from whaleish.rules.rule import OpView, Rule, Signature, TensorSpec, registry

__all__ = ["OpView", "Rule", "Signature", "TensorSpec", "registry"]
