"""Numbers that change nothing."""

from __future__ import annotations

import math

import numpy as np

from whaleish.rules.forms import FLOATS


def neutral(type: str, dtype: str) -> float:
    """What the scatter `type` may take in without a change: 0 where it adds, 1 where it multiplies, else an extreme.

    Raises:
      ValueError: the scatter writes what it is given.
    """
    if type.endswith(("Add", "Sub")):
        return 0
    if type.endswith(("Mul", "Div")):
        return 1
    if not type.endswith(("Max", "Min")):
        raise ValueError(f"{type} changes what it is given any number for")
    if dtype in FLOATS:
        return -math.inf if type.endswith("Max") else math.inf
    limits = np.iinfo(dtype)
    return int(limits.min if type.endswith("Max") else limits.max)
