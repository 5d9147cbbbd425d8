"""Who stores what: every element once, by one that holds it, and no rank much more than the others."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from whaleish.checkpoint import slices
from whaleish.checkpoint.slices import Held, Piece, deal, spec, within
from whaleish.mesh import Axis, Mesh
from whaleish.sbp import B, S


@st.composite
def tensors(draw):
    """Tensors on a mesh of ranks: (shape, layout, held)."""
    mesh = Mesh(tuple(Axis(name, draw(st.integers(1, 3))) for name in "ab"))
    made = []
    for _ in range(draw(st.integers(1, 4))):
        shape = tuple(draw(st.lists(st.integers(1, 300), min_size=0, max_size=2)))
        one = st.sampled_from([B, *map(S, range(len(shape)))])
        layout = (draw(one), draw(one))
        pieces = {}
        for part in range(mesh.size):
            pieces.setdefault(mesh.first_alike(part, layout), []).append(part)
        found = tuple(Piece(mesh.pieces(shape, layout, owner), tuple(parts)) for owner, parts in pieces.items())
        made.append(Held(shape, draw(st.sampled_from([1, 2, 4, 8, 16])), found))
    return mesh.size, made


@given(tensors(), st.sampled_from([1 << 8, 1 << 12, 64 << 20]), st.sampled_from([1 << 6, 1 << 20]))
def test_every_element_is_stored_once_by_one_that_holds_it(case, slice_bytes, shared_bytes):
    ranks, made = case
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slices, "SLICE_BYTES", slice_bytes)
        patch.setattr(slices, "SHARED_BYTES", shared_bytes)
        dealt = deal(made, ranks)
    assert len(dealt) == ranks
    stored = [np.zeros(tensor.shape, int) for tensor in made]
    for rank, slices_ in enumerate(dealt):
        for one in slices_:
            piece = made[one.tensor].pieces[one.piece]
            assert rank in piece.holders
            bounds = one.bounds or tuple((0, length) for length in made[one.tensor].shape)
            own = within(bounds, piece.bounds)
            sizes = [length for _, length in piece.bounds]
            assert all(start >= 0 and start + length <= size for (start, length), size in zip(own, sizes, strict=True))
            assert all(length > 0 for _, length in bounds)
            stored[one.tensor][tuple(slice(start, start + length) for start, length in bounds)] += 1
    assert all((array == 1).all() for array in stored)


def test_no_slice_is_much_longer_than_what_is_read_at_once():
    held = Held((100_000, 1000), 4, (Piece(((0, 100_000), (0, 1000)), (0,)),))
    lengths = [math.prod(length for _, length in one.bounds) * 4 for one in deal([held], 1)[0]]
    assert max(lengths) <= slices.SLICE_BYTES * 1.01
    assert len(lengths) == 6


def test_what_all_hold_is_divided():
    everywhere = tuple(range(4))
    large = Held((4096, 1024), 4, (Piece(((0, 4096), (0, 1024)), everywhere),))
    small = [Held((10,), 4, (Piece(((0, 10),), everywhere),)) for _ in range(40)]
    dealt = deal([large, *small], 4)
    assert [sum(one.tensor == 0 for one in own) for own in dealt] == [1] * 4
    assert [len(own) for own in dealt] == [11] * 4
    # What cannot be sliced is one rank's, and the others have the rest.
    whole = Held((4096, 1024), 2, large.pieces, divisible=False)
    assert [len(own) for own in deal([whole, *small], 4)] == [1, 14, 13, 13]


def test_how_slices_are_written_down():
    assert spec((512, 1000), ((0, 128), (0, 1000))) == "512 1000 0,128:-"
    assert spec((512, 1000), ((0, 512), (0, 1000))) == ""
    assert spec((512,), None) == spec((), ()) == ""
