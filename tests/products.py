"""Products of test cases: whole, or sampled so that every pair of values of two factors still meets."""

import itertools
import os
from collections.abc import Iterable
from typing import Any

import allpairspy

ALL = "WHALEISH_TEST_ALL"  # set by `pytest --all-cases`, or in the environment


def pairwise(**factors: Iterable[Any]) -> tuple[str, list[tuple[Any, ...]]]:
    """The arguments of `pytest.mark.parametrize` for a product of cases.

        @pytest.mark.parametrize(*pairwise(model=["mlp", "cnn"], devices=[1, 2, 3, 4], optimizer=["sgd", "adamw"]))

    Every pair of values of any two factors is in some case; under `--all-cases`, every combination is.
    """
    values = [list(factor) for factor in factors.values()]
    names = ",".join(factors)
    if not all(values) or len(values) < 3 or all_cases():
        return names, list(itertools.product(*values))
    # By index, as values need not be comparable or hashable.
    sampled = allpairspy.AllPairs([range(len(factor)) for factor in values])
    return names, [tuple(factor[index] for factor, index in zip(values, row, strict=True)) for row in sampled]


def either(few: Iterable[Any], every: Iterable[Any]) -> list[Any]:
    """A hand-picked few cases, or under `--all-cases` every one; for products of two factors that are dear to run."""
    return list(every if all_cases() else few)


def all_cases() -> bool:
    return os.environ.get(ALL) == "1"
