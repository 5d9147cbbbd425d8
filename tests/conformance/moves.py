"""Values and constants for the cases of ops that move data."""

import numpy as np

from tests.conformance.executor import Case, Resource


def ramp(*shape: int, dtype: str = "float32") -> np.ndarray:
    """0, 1, 2... so that an element out of place shows."""
    return np.arange(int(np.prod(shape))).reshape(shape).astype(dtype)


def ints(*values: int, dtype: str = "int32") -> np.ndarray:
    return np.array(values, dtype)


def moving(op: str, /, *inputs: np.ndarray | Resource, known: tuple[int, ...] = (), **attrs: object) -> Case:
    """A case whose last inputs, the small integers, are constants: `known`, or all but the first."""
    return Case(op, inputs, attrs, known or tuple(range(1, len(inputs))))
