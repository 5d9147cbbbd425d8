"""Sampled products of cases: every pair meets, and all combinations on request."""

import itertools

import pytest

from tests import products
from tests.products import pairwise

FACTORS = {"a": [1, 2, 3, 4], "b": ["x", "y", "z"], "c": [True, False], "d": [None, {}]}


@pytest.fixture
def sampling(monkeypatch):
    monkeypatch.delenv(products.ALL, raising=False)


@pytest.mark.usefixtures("sampling")
def test_every_pair_of_values_meets_in_far_fewer_cases():
    names, cases = pairwise(**FACTORS)
    assert names == "a,b,c,d"
    assert len(cases) < 4 * 3 * 2 * 2 / 2
    for (i, left), (j, right) in itertools.combinations(enumerate(FACTORS.values()), 2):
        for pair in itertools.product(left, right):
            assert any((case[i], case[j]) == pair for case in cases), pair


@pytest.mark.usefixtures("sampling")
def test_two_factors_are_taken_whole():
    assert len(pairwise(a=[1, 2, 3], b=[1, 2])[1]) == 6


def test_all_cases_are_every_combination(monkeypatch):
    monkeypatch.setenv(products.ALL, "1")
    assert pairwise(**FACTORS)[1] == list(itertools.product(*FACTORS.values()))


def test_of_a_product_that_is_too_large_some_factors_are_whole_on_request(monkeypatch):
    monkeypatch.setenv(products.ALL, "1")
    names, cases = pairwise(whole=("d", "a"), **FACTORS)
    assert names == "a,b,c,d"
    found = [(case[3], case[0]) for case in cases]
    assert all(pair in found for pair in itertools.product(FACTORS["d"], FACTORS["a"]))
    assert all(value in factor for case in cases for value, factor in zip(case, FACTORS.values(), strict=True))
    assert len(cases) < 24
