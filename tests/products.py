"""Products of test cases: whole, or sampled so that every pair of values of two factors still meets."""

import itertools
import os
import random
from collections.abc import Iterable, Sequence
from typing import Any

import allpairspy

ALL = "WHALEISH_TEST_ALL"  # set by `pytest --all-cases`, or in the environment


def pairwise(whole: Sequence[str] = (), **factors: Iterable[Any]) -> tuple[str, list[tuple[Any, ...]]]:
    """The arguments of `pytest.mark.parametrize` for a product of cases.

        @pytest.mark.parametrize(*pairwise(model=["mlp", "cnn"], devices=[1, 2, 3, 4], optimizer=["sgd", "adamw"]))

    Every pair of values of any two factors is in some case; under `--all-cases`, every combination is.

    Args:
      whole: names of factors, where a product would take hours: under `--all-cases` only their combinations are all
        there besides the pairs, each once, with values of the other factors drawn at random.
    """
    values = [list(factor) for factor in factors.values()]
    names = ",".join(factors)
    if not all(values) or len(values) < 3 or (all_cases() and not whole):
        return names, list(itertools.product(*values))
    cases = _pairs(values)
    if all_cases():
        rng = random.Random(0)
        for own in itertools.product(*(factors[name] for name in whole)):
            case = {name: rng.choice(factor) for name, factor in zip(factors, values, strict=True)}
            cases.append(tuple((case | dict(zip(whole, own, strict=True))).values()))
    return names, cases


def _pairs(values: Sequence[Sequence[Any]]) -> list[tuple[Any, ...]]:
    # By index, as values need not be comparable or hashable.
    sampled = allpairspy.AllPairs([range(len(factor)) for factor in values])
    return [tuple(factor[index] for factor, index in zip(values, row, strict=True)) for row in sampled]


def either(few: Iterable[Any], every: Iterable[Any]) -> list[Any]:
    """A hand-picked few cases, or under `--all-cases` every one; for products of two factors that are dear to run."""
    return list(every if all_cases() else few)


def all_cases() -> bool:
    return os.environ.get(ALL) == "1"
