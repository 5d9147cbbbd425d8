"""Layouts as text and back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whaleish.sbp import PMAX, PMIN, B, P, S, Sbp, format_layout, parse_layout, parse_sbp

entries = st.one_of(st.sampled_from([B, P, PMAX, PMIN]), st.builds(S, st.integers(0, 20), st.integers(1, 99)))


@given(entries)
def test_one_entry(sbp: Sbp) -> None:
    assert parse_sbp(str(sbp)) == sbp
    assert repr(sbp) == str(sbp)
    assert [sbp.is_split, sbp.is_broadcast, sbp.is_partial].count(True) == 1


@given(st.lists(entries, min_size=1, max_size=4).map(tuple))
def test_layouts(layout: tuple[Sbp, ...]) -> None:
    assert parse_layout(format_layout(layout)) == layout


def test_equal_splits_are_equal() -> None:
    assert S(1) == Sbp("S", 1) == parse_sbp(" S(1) ")
    assert S(1) != S(1, 2)
    assert len({S(14), Sbp("S", 14), parse_sbp("S(14)")}) == 1


@pytest.mark.parametrize("text", ["", "S", "S()", "S(-1)", "S(0:0)", "Q", "s(0)", "S(0),B", "PP"])
def test_text_that_is_no_layout(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a layout of one axis; write|the dim must be 0 or more"):
        parse_sbp(text)


def test_numbers_that_are_refused() -> None:
    for dim, unit in ((-1, 1), (0, 0)):
        with pytest.raises(ValueError, match="the dim must be 0 or more and the unit 1 or more"):
            S(dim, unit)
