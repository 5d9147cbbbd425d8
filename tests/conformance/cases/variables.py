"""Reads and writes of variables, optimizer kernels: what the variables hold afterwards is compared too."""

import numpy as np

from tests.conformance.executor import Case, Resource
from whaleish.rules import variables as family

rng = np.random.default_rng(6)


def normal(*shape: int) -> np.ndarray:
    return np.asarray(rng.normal(size=shape))


def number(value: float) -> np.ndarray:
    return np.array(value)


def variable(*shape: int) -> Resource:
    return Resource(normal(*shape))


def slot(*shape: int) -> Resource:
    """Accumulated squares and the like are above zero."""
    return Resource(rng.uniform(0.5, 1.5, shape))


LR, RATE, SMALL = number(0.1), number(0.9), number(0.01)
SETTINGS = {
    # Slots, then the scalars before the gradient and after it.
    "Adadelta": (2, (LR, RATE, SMALL), ()),
    "Adagrad": (1, (LR,), ()),
    "AdagradV2": (1, (LR, SMALL), ()),
    "Adam": (2, (RATE, RATE, LR, RATE, RATE, SMALL), ()),
    "AdamWithAmsgrad": (3, (RATE, RATE, LR, RATE, RATE, SMALL), ()),
    "AdaMax": (2, (RATE, LR, RATE, RATE, SMALL), ()),
    "AddSign": (1, (LR, RATE, RATE, RATE), ()),
    "PowerSign": (1, (LR, RATE, RATE, RATE), ()),
    "CenteredRMSProp": (3, (LR, RATE, RATE, number(5.0)), ()),
    "RMSProp": (2, (LR, RATE, RATE, SMALL), ()),
    "GradientDescent": (0, (LR,), ()),
    "ProximalGradientDescent": (0, (LR, SMALL, SMALL), ()),
    "ProximalAdagrad": (1, (LR, SMALL, SMALL), ()),
    "Ftrl": (2, (), (LR, SMALL, SMALL, number(-0.5))),
    "FtrlV2": (2, (), (LR, SMALL, SMALL, SMALL, number(-0.5))),
    "Momentum": (1, (LR,), (RATE,)),
    "KerasMomentum": (1, (LR,), (RATE,)),
    "AdagradDA": (2, (), (LR, SMALL, SMALL, np.array(3, np.int64))),
}
ROWS = np.array([3, 0, 4], np.int32)


def dense(name: str, *shape: int) -> Case:
    slots, before, after = SETTINGS[name]
    state = (variable(*shape), *(slot(*shape) for _ in range(slots)))
    return Case(f"ResourceApply{name}", (*state, *before, normal(*shape), *after))


def sparse(name: str, *shape: int) -> Case:
    slots, before, after = SETTINGS[name]
    state = (variable(*shape), *(slot(*shape) for _ in range(slots)))
    return Case(f"ResourceSparseApply{name}", (*state, *before, normal(len(ROWS), *shape[1:]), ROWS, *after))


def counts(*shape: int) -> Resource:
    return Resource(rng.integers(0, 9, shape))


CASES = [
    Case("ReadVariableOp", (variable(5, 2),), {"dtype": "float64"}),
    Case("ReadVariableOp", (Resource(normal(6) > 0),), {"dtype": "bool"}),
    Case("VarIsInitializedOp", (variable(5, 2),)),
    *(
        Case(f"Assign{kind}VariableOp", inputs)
        for kind in ("", "Add", "Sub")
        for inputs in ((variable(5, 2), normal(5, 2)), (variable(), normal()), (counts(6), rng.integers(0, 9, 6)))
    ),
    *(dense(name, *shape) for name in family.OPTIMIZERS for shape in ((5, 2), (6,))),
    *(sparse(name, 5, 4) for name in family.SPARSE_OPTIMIZERS),
]
