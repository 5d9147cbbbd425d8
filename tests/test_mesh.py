"""Meshes: cuts and pieces, for any lengths, units, shares and layouts."""

import itertools
from math import prod

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from whaleish.mesh import Axis, Mesh
from whaleish.sbp import PMAX, B, Layout, P, S, dual


@st.composite
def axes(draw: st.DrawFn, name: str = "d") -> Axis:
    size = draw(st.integers(1, 5))
    shares = draw(st.none() | st.lists(st.integers(0, 4), min_size=size, max_size=size).filter(any))
    return Axis(name, size, tuple(shares) if shares else None)


@st.composite
def held(draw: st.DrawFn) -> tuple[Mesh, tuple[int, ...], Layout]:
    """A mesh of one or two axes, a shape, and a layout that the shape has on it (units on one axis only)."""
    mesh = Mesh(tuple(draw(axes(name)) for name in "xy"[: draw(st.integers(1, 2))]))
    shape = tuple(draw(st.lists(st.integers(0, 12), min_size=1, max_size=3)))
    layout = tuple(draw(st.sampled_from([B, P, PMAX, *(S(d) for d in range(len(shape)))])) for _ in mesh.axes)
    if len(mesh.axes) == 1 and layout[0].is_split:
        length = shape[layout[0].dim]
        layout = (S(layout[0].dim, draw(st.sampled_from([u for u in range(1, 13) if length % u == 0]))),)
    return mesh, shape, layout


@given(axes(), st.integers(0, 60), st.integers(1, 8))
def test_cuts(axis: Axis, units: int, unit: int) -> None:
    cuts = axis.cuts(units * unit, unit)
    lengths = [b - a for a, b in itertools.pairwise(cuts)]
    assert (cuts[0], cuts[-1], len(cuts)) == (0, units * unit, axis.size + 1)
    assert all(length >= 0 and length % unit == 0 for length in lengths)
    weights = axis.shares or (1,) * axis.size
    for length, weight in zip(lengths, weights, strict=True):
        assert abs(length / unit - units * weight / sum(weights)) < 1
        assert weight or not length
    if axis.shares is None:
        assert lengths == sorted(lengths, reverse=True)  # the first N mod p parts are one longer


@given(axes(), st.integers(0, 60), st.integers(1, 12))
def test_the_normal_unit_has_the_same_cuts(axis: Axis, units: int, unit: int) -> None:
    length = units * unit
    normal = axis.normal(S(2, unit), length)
    assert axis.cuts(length, normal.unit) == axis.cuts(length, unit)
    assert axis.normal(normal, length) == normal
    for smaller in range(1, normal.unit):
        assert unit % smaller or axis.cuts(length, smaller) != axis.cuts(length, unit)
    assert axis.normal(B, length) == B


def test_lengths_that_are_no_whole_units() -> None:
    with pytest.raises(ValueError, match="7 elements has no cuts on multiples of 2"):
        Axis("d", 2).cuts(7, 2)
    assert Axis("d", 2).cuts(15, 3) == (0, 9, 15)  # [5, 3] flattened
    assert Axis("d", 4).cuts(1) == (0, 1, 1, 1, 1)


@given(held())
def test_pieces_partition_the_tensor(given_: tuple[Mesh, tuple[int, ...], Layout]) -> None:
    mesh, shape, layout = given_
    count = np.zeros(shape, int)
    for part in range(mesh.size):
        pieces = mesh.pieces(shape, layout, part)
        assert mesh.local_shape(shape, layout, part) == tuple(length for _, length in pieces)
        count[tuple(slice(start, start + length) for start, length in pieces)] += 1
    copies = prod(axis.size for axis, sbp in zip(mesh.axes, layout, strict=True) if not sbp.is_split)
    assert (count == copies).all()


@given(held())
def test_a_second_axis_splits_the_pieces_of_the_first(given_: tuple[Mesh, tuple[int, ...], Layout]) -> None:
    mesh, shape, layout = given_
    assume(len(mesh.axes) == 2)
    outer, inner = (Mesh((axis,)) for axis in mesh.axes)
    for part in range(mesh.size):
        at = mesh.coordinate(part)
        around = outer.pieces(shape, layout[:1], at[0])
        within = inner.pieces([length for _, length in around], layout[1:], at[1])
        joined = tuple((a + b, length) for (a, _), (b, length) in zip(around, within, strict=True))
        assert mesh.pieces(shape, layout, part) == joined


@given(st.lists(st.integers(1, 4), min_size=1, max_size=3))
def test_coordinates(sizes: list[int]) -> None:
    mesh = Mesh(tuple(Axis(f"a{n}", size) for n, size in enumerate(sizes)))
    places = [mesh.coordinate(part) for part in range(mesh.size)]
    assert places == list(itertools.product(*map(range, sizes)))


@given(st.lists(st.tuples(st.integers(1, 4), st.booleans()), min_size=1, max_size=3))
def test_axes_of_time(axes: list[tuple[int, bool]]) -> None:
    """Parts that differ only in time are on one device, and on each device is one part of each time."""
    mesh = Mesh(tuple(Axis(f"a{n}", size, time=time) for n, (size, time) in enumerate(axes)))
    together = [(mesh.device(part), mesh.time(part)) for part in range(mesh.size)]
    assert len(set(together)) == mesh.size
    assert {mesh.device(part) for part in range(mesh.size)} == set(range(mesh.in_space.size)) == set(mesh.devices)
    for part in range(mesh.size):
        assert mesh.in_space.coordinate(mesh.place(part)) == mesh.without_time(mesh.coordinate(part))
    layout = tuple(S(n) for n in range(len(mesh.in_space.axes)))
    assert mesh.without_time(mesh.at_all_times(layout)) == layout


def test_text() -> None:
    assert Mesh((Axis("data", 2, (3, 1)), Axis("model", 2)), (3, 1, 0, 2)).text() == "data:2[3,1] x model:2"


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Axis("d", 0), "an axis has at least one part"),
        (lambda: Axis("d", 2, (1,)), "give 2 non-negative integers"),
        (lambda: Axis("d", 2, (0, 0)), "not all zero"),
        (lambda: Axis("d", 2, (-1, 2)), "non-negative"),
        (lambda: Mesh((Axis("d", 2),), (0,)), "a mesh of 2 parts needs 2 different devices"),
        (lambda: Mesh((Axis("d", 2),), (1, 1)), "different devices"),
    ],
)
def test_what_is_refused(make, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        make()


def test_duals() -> None:
    assert [dual(sbp) for sbp in (S(1, 3), B, P)] == [S(1, 3), P, B]
