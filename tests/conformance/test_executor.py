"""The executor itself: it finds false signatures, and it cuts and joins as layouts say."""

import itertools

import numpy as np
import pytest

from tests.conformance.executor import AXES, MESHES, Case, Resource, registry, run_signature
from tests.conformance.kernels import execute
from tests.conformance.parts import Unequal, cut, join
from whaleish.mesh import Mesh
from whaleish.rules.rule import Rule, Signature
from whaleish.sbp import PMAX, PMIN, B, P, S

rng = np.random.default_rng(0)
VALUE = rng.normal(size=(5, 4))
FALSE = [
    (Case("AddV2", (VALUE, VALUE)), Signature((P, B), (P,))),
    (Case("Mul", (VALUE, VALUE)), Signature((P, P), (P,))),
    (Case("Relu", (VALUE,)), Signature((P,), (P,))),
    (Case("Neg", (VALUE,)), Signature((PMAX,), (PMAX,))),
    (Case("Sum", (VALUE, np.array([0])), constants=(1,)), Signature((S(0), B), (B,))),
    (Case("Mean", (VALUE, np.array([1])), constants=(1,)), Signature((S(1), B), (B,))),
    (Case("MatMul", (VALUE, VALUE.T)), Signature((S(0), S(1)), (S(0),))),
    (Case("Identity", (VALUE,)), Signature((S(0),), (B,))),
    (Case("AssignAddVariableOp", (Resource(VALUE), VALUE)), Signature((P, B), ())),
]


@pytest.mark.parametrize(("case", "signature"), FALSE, ids=[f"{c.type}: {s}" for c, s in FALSE])
def test_false_signature_is_found(case: Case, signature: Signature) -> None:
    with pytest.raises((AssertionError, ValueError)):
        run_signature(case, [signature], Mesh((AXES[0],)))


def test_broadcast_that_differs_is_found() -> None:
    with pytest.raises(Unequal):
        join([VALUE, VALUE + 1e-6], (B,), AXES[:1])


def test_part_of_wrong_shape_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.rules, "Relu", Rule(lambda op: [], lower=lambda part: [part.const(VALUE, "float64")]))
    with pytest.raises(AssertionError, match=r"shape \(5, 4\)"):
        run_signature(Case("Relu", (VALUE,)), [Signature((S(0),), (S(0),))], Mesh((AXES[0],)))


def test_cut_and_join_are_inverse() -> None:
    for mesh, outer, inner in itertools.product(MESHES, *[(S(0), S(1), S(0, 2), B, P, PMAX, PMIN)] * 2):
        value = rng.normal(size=(12, 4))
        try:
            parts = cut(value, (outer, inner), mesh.axes, rng)
        except ValueError:  # No whole units at some coordinate.
            continue
        for part, piece in enumerate(parts):
            assert piece.shape == mesh.local_shape(value.shape, (outer, inner), part)
        np.testing.assert_allclose(join(parts, (outer, inner), mesh.axes), value, 1e-12, 1e-12)


def test_emitting_without_a_needed_attribute_is_an_error() -> None:
    with pytest.raises(ValueError, match="without its attribute 'T'"):
        execute("Relu", [VALUE], {})
    with pytest.raises(ValueError, match="no attributes"):
        execute("Relu", [VALUE], {"T": "float64", "axis": 0})
