"""What travels inside an expansion is what its signature says: a number per row or per block, and nothing whole."""

import itertools

import pytest

from tests.conformance.cases import normalisation, ranking, reduction, scans
from tests.conformance.executor import AXES, Boxing, Case, fits, registry, run_signature
from whaleish.mesh import Mesh
from whaleish.sbp import Sbp

FAMILIES = (normalisation, ranking, reduction, scans)
EXPANDING = [
    case
    for case in itertools.chain.from_iterable(family.CASES for family in FAMILIES)
    if registry.rules[case.type].expand is not None
]


def all_reduced(boxing: Boxing) -> float:
    """Bytes, as if by all-reduce: a gather sends half of that, a slice of what is whole or a summand nothing."""
    (before,), (after,) = boxing.before, boxing.after
    return boxing.size * share(before, after)


def share(before: Sbp, after: Sbp) -> float:
    if before.is_broadcast or (before.is_split and after.is_partial):
        return 0
    return 0.5 if before.is_split else 1


@pytest.mark.parametrize("case", EXPANDING, ids=str)
def test_as_many_bytes_travel_as_the_signature_says(case: Case) -> None:
    op = case.view()
    signatures = [s for s in registry.signatures(op) if s.expands]
    for signature, axis in itertools.product(signatures, AXES):
        mesh = Mesh((axis,))
        if fits(op, [signature], mesh):
            boxings = run_signature(case, [signature], mesh)
            assert sum(map(all_reduced, boxings)) == pytest.approx(signature.inner_bytes, abs=1), boxings


def test_types_that_expand() -> None:
    types = {case.type for case in EXPANDING if any(s.expands for s in registry.signatures(case.view()))}
    assert types >= {
        "All",
        "Any",
        "ArgMax",
        "ArgMin",
        "Cumprod",
        "Cumsum",
        "EuclideanNorm",
        "FusedBatchNormV3",
        "InTopKV2",
        "Prod",
    }
