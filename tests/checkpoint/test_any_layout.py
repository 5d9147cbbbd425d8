"""Whatever the shape, the type, the mesh and the layouts: what is restored is what was saved."""

import tempfile

import numpy as np
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

import whaleish as wh
from whaleish.mesh import Axis, Mesh
from whaleish.sbp import PMAX, PMIN, B, P, S
from whaleish.state import lay_out

TYPES = ("float32", "float64", "bfloat16", "float16", "int8", "int32", "uint16", "uint32", "bool", "complex64")


@st.composite
def meshes(draw):
    sizes = draw(st.sampled_from([(1,), (2,), (3,), (4,), (2, 2), (1, 3)]))
    shares = [draw(st.none() | st.tuples(*[st.integers(1, 3)] * size)) for size in sizes]
    devices = draw(st.permutations(range(4)))[: np.prod(sizes)]
    axes = tuple(Axis(name, size, share) for name, size, share in zip("ab", sizes, shares, strict=False))
    return Mesh(axes, tuple(devices))


@st.composite
def layouts(draw, shape, dtype, mesh):
    kinds = [B, *(S(dim) for dim in range(len(shape)) if shape[dim])]
    kinds += [PMAX, PMIN] if dtype in ("float32", "float64", "int32") else []
    kinds += [P] if dtype in ("float32", "float64", "int32", "complex64") else []
    return tuple(draw(st.sampled_from(kinds)) for _ in mesh.axes)


@st.composite
def journeys(draw):
    """A value, and where it lies when it is saved, and when it is restored."""
    shape = tuple(draw(st.lists(st.integers(1, 7), max_size=3)))
    dtype = draw(st.sampled_from(TYPES))
    before, after = draw(meshes()), draw(meshes())
    return shape, dtype, before, draw(layouts(shape, dtype, before)), after, draw(layouts(shape, dtype, after))


@settings(max_examples=60, deadline=None)
@given(st.lists(journeys(), min_size=1, max_size=4), st.booleans())
def test_restored_is_what_was_saved(cases, asynchronous) -> None:
    saved, restored, values = [], [], []
    for number, (shape, dtype, before, first, after, then) in enumerate(cases):
        drawn = tf.constant(np.random.default_rng(number).integers(0, 100, shape))
        values.append(tf.cast(drawn, dtype) if dtype != "bool" else drawn % 2 == 0)
        saved.append(tf.Variable(values[-1]))
        lay_out(saved[-1], first, before)
        restored.append(tf.Variable(tf.zeros(shape, dtype)))
        lay_out(restored[-1], then, after)
    with tempfile.TemporaryDirectory() as folder:
        path = wh.checkpoint.save(folder, {"v": saved}, asynchronous=asynchronous).wait()
        wh.checkpoint.restore(folder, {"v": restored})
        reader = tf.train.load_checkpoint(path)
        plain = [reader.get_tensor(f"v/{number}/.ATTRIBUTES/VARIABLE_VALUE") for number in range(len(cases))]
    arrays = [np.asarray(value.numpy()) for value in values]
    for value, alone, one, other in zip(arrays, plain, saved, restored, strict=True):
        np.testing.assert_array_equal(np.asarray(alone), value)
        np.testing.assert_array_equal(np.asarray(one.numpy()), value)
        np.testing.assert_array_equal(np.asarray(other.numpy()), value)
