"""Operator signatures, one file per family of ops. Importing the package fills the registry."""

from whaleish.rules import (  # noqa: F401
    control,
    convolution,
    counting,
    elementwise,
    gather,
    gradient,
    host,
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
    rows,
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
from whaleish.rules.control import CONTROL
from whaleish.rules.gradient import GRADIENT
from whaleish.rules.host import TO_DEVICE, TO_HOST
from whaleish.rules.local import LOCAL_MEAN, LOCAL_MEAN_GRADIENT
from whaleish.rules.rows import MERGE_ROWS
from whaleish.rules.rule import OpView, Rule, Signature, TensorSpec, registry

OURS = frozenset({GRADIENT, LOCAL_MEAN, LOCAL_MEAN_GRADIENT, MERGE_ROWS, TO_DEVICE, TO_HOST, *CONTROL})
"""Op types that capture and passes write and that are none of TensorFlow's."""

__all__ = ["OURS", "OpView", "Rule", "Signature", "TensorSpec", "registry"]
