"""Every declared signature of every rule, executed part by part, equals the op on one device."""

import itertools
import random
import zlib

import pytest

from tests.conformance.cases import CASES
from tests.conformance.executor import AXES, MESHES, Case, fits, registry, run_signature, scaled
from whaleish.mesh import Mesh
from whaleish.rules import OURS
from whaleish.rules.rule import OpView, Signature

SAMPLE = {"one axis": 40, "two axes": 8}
"""Runs per case unless `--all-cases` is given; each signature still runs at least once on one axis."""


def one_axis(op: OpView, offers: list[Signature]) -> list[tuple[list[Signature], Mesh]]:
    """Each signature, also with all its units doubled, on each axis; those that fit."""
    runs = [([scaled(s, factor)], Mesh((axis,))) for axis in AXES for factor in (1, 2) for s in offers]
    return [run for run in runs if fits(op, *run)]


def two_axes(op: OpView, offers: list[Signature]) -> list[tuple[list[Signature], Mesh]]:
    """Each pair of signatures on each mesh of two axes. Expansions are run on one axis only."""
    offers = [s for s in offers if not s.expands]
    return [([outer, inner], mesh) for mesh in MESHES for outer, inner in itertools.product(offers, offers)]


def sample(runs: list[tuple[list[Signature], Mesh]], count: int, seed: int) -> list[tuple[list[Signature], Mesh]]:
    """At least one run of each signature, and about `count` in all."""
    runs = list(runs)
    random.Random(seed).shuffle(runs)
    runs.sort(key=lambda run: tuple(str(s) for s in run[0][:1]))
    first = {str(run[0][0]): run for run in runs}
    rest = [run for run in runs if first[str(run[0][0])] is not run]
    random.Random(seed).shuffle(rest)
    return [*first.values(), *rest[: max(0, count - len(first))]]


def units(op: OpView, signature: Signature) -> set[int]:
    """The number of units in each split dim; the algebra asks for one number."""
    pairs = zip((*op.inputs, *op.outputs), (*signature.inputs, *signature.outputs), strict=True)
    return {spec.shape[sbp.dim] // sbp.unit for spec, sbp in pairs if sbp.is_split}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_signatures_of_case(case: Case, request: pytest.FixtureRequest) -> None:
    all_cases = request.config.getoption("--all-cases", default=False)
    op, seed = case.view(), zlib.crc32(str(case).encode())
    offers = registry.signatures(op)
    assert len(set(offers)) == len(offers), "a signature is offered twice"
    failures = [f"{s}: its split dims have different numbers of units" for s in offers if len(units(op, s)) > 1]
    runs = one_axis(op, offers)
    pairs = two_axes(op, offers)
    if not all_cases:
        runs = sample(runs, SAMPLE["one axis"], seed)
        random.Random(seed).shuffle(pairs)
        pairs = list(itertools.islice((run for run in pairs if fits(op, *run)), SAMPLE["two axes"]))
    for signatures, mesh in (*runs, *(run for run in pairs if fits(op, *run))):
        try:
            run_signature(case, signatures, mesh, seed)
        except Exception as error:  # All that fail are reported together.
            failures.append(f"{' | '.join(map(str, signatures))} on {mesh.text()}: {type(error).__name__}: {error}")
    assert not failures, f"{len(failures)} runs differ:\n" + "\n".join(failures[:8])


def test_every_rule_has_a_case_that_divides_work() -> None:
    divided = {case.type for case in CASES if len(registry.signatures(case.view())) > 1}
    missing = sorted(set(registry.rules) - divided - OURS)  # those are tested with whole steps
    count = sum(len(registry.signatures(case.view())) for case in CASES)
    print(f"{len(CASES)} cases of {len(divided)} op types, {count} signatures")
    assert not missing, f"rules without a case that has more than the all-B signature: {missing}"
