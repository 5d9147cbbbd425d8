"""Variables on meshes of some devices, as stages have them, in one process: where they lie, and what that keeps."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

import whaleish as wh
from whaleish import world
from whaleish.mesh import Axis, Mesh
from whaleish.sbp import PMAX, B, P, S
from whaleish.state import lay_out, moves, storage
from whaleish.state.tf_private import ResourceVariable


@pytest.fixture(autouse=True)
def _devices():
    world.init(virtual_devices=4)


def line(*devices):
    return Mesh((Axis("a", len(devices)),), devices)


POINTS = [Mesh((), (device,)) for device in range(4)]
SQUARE = Mesh((Axis("a", 2), Axis("b", 2)), (3, 1, 0, 2))


def has_own(variable):
    """Whether there is storage under the variable's own handle."""
    return bool(tf.raw_ops.VarIsInitializedOp(resource=variable.handle))


@pytest.mark.parametrize(
    ("mesh", "layout", "device"),
    [
        (POINTS[2], (), 2),
        (line(1), (B,), 1),
        (line(2, 3), (B,), 2),
        (line(3, 0), (B,), 3),
        (Mesh((Axis("a", 1), Axis("b", 3)), (2, 1, 0)), (B, B), 2),
    ],
)
def test_a_whole_lies_on_the_first_device(mesh, layout, device):
    v, count = tf.Variable(tf.range(6.0)), moves.count
    stored = lay_out(v, layout, mesh)
    assert stored == storage(v)
    assert (stored.layout, stored.mesh, stored.whole) == (layout, mesh, True)
    assert (v.in_parts, has_own(v), moves.count) == (True, False, count + 1)
    assert stored.parts == tuple(range(mesh.size))
    (handle,) = {id(handle): handle for handle in stored.handles}.values()
    assert handle.device.endswith(f"CPU:{device}")
    np.testing.assert_array_equal(tf.raw_ops.ReadVariableOp(resource=handle, dtype=v.dtype), range(6))
    np.testing.assert_array_equal(v, range(6))
    v.assign_add(tf.ones([6]))
    np.testing.assert_array_equal(tf.raw_ops.ReadVariableOp(resource=handle, dtype=v.dtype), range(1, 7))
    assert lay_out(v, layout, mesh) == stored
    assert moves.count == count + 1


@pytest.mark.parametrize(
    ("own", "mesh", "layout"),
    [
        (0, line(0, 1, 2, 3), (B,)),
        (0, line(3, 2, 1, 0), (B,)),
        (2, SQUARE, (B, B)),
        (0, POINTS[0], ()),
        (0, line(0, 3), (B,)),
        (2, POINTS[2], ()),
        (3, line(3, 0), (B,)),
    ],
)
def test_what_needs_no_move_stays_in_place(own, mesh, layout):
    with tf.device(f"CPU:{own}"):
        v = tf.Variable(tf.range(6.0))
    count = moves.count
    stored = lay_out(v, layout, mesh)
    assert (v.in_parts, has_own(v), moves.count) == (False, True, count)
    assert stored.parts == tuple(range(mesh.size))
    assert all(handle is v.handle for handle in stored.handles)
    lay_out(v, (S(0),), line(1, 2))
    assert not has_own(v)
    lay_out(v, layout, mesh)
    assert (v.in_parts, has_own(v), moves.count) == (False, True, count + 2)
    assert v.handle.device.endswith(f"CPU:{own}")
    np.testing.assert_array_equal(v, range(6))


@pytest.mark.parametrize("world_of", [2], indirect=True)
def test_what_is_all_devices_depends_on_the_world(world_of):
    v = tf.Variable(tf.range(6.0))
    lay_out(v, (B,), line(1, 0))
    assert not v.in_parts
    lay_out(v, (B,), line(1))
    assert v.in_parts
    with pytest.raises(ValueError, match=r"the mesh has device 2; there are 2, from 0"):
        lay_out(v, (B,), line(2))


def test_a_variable_from_before_init_stays_where_it_is():
    early = ResourceVariable(tf.ones([4]))
    assert lay_out(early, (B,), line(0, 1)).handles == (early.handle,)
    with pytest.raises(ValueError, match=r"wh.init\(\)"):
        lay_out(early, (), POINTS[2])


def test_shapes_without_elements_or_numbers():
    for value, options in [
        (7.0, {}),
        (np.zeros([0, 3]), {}),
        (["a", "b"], {"trainable": False}),
        (np.ones([2, 3]), {"shape": tf.TensorShape([None, 3])}),
        (np.ones([2, 3]), {"shape": tf.TensorShape(None)}),
    ]:
        v, plain = tf.Variable(value, **options), tf.constant(value)
        for mesh in (POINTS[2], POINTS[1], POINTS[0]):
            lay_out(v, (), mesh)
            np.testing.assert_array_equal(v, plain)
    v.assign(np.zeros([5]))  # of unknown shape
    lay_out(v, (), POINTS[3])
    np.testing.assert_array_equal(v, np.zeros([5]))
    with pytest.raises(ValueError, match="whose shape is known"):
        lay_out(v, (S(0),), line(0, 1))


def test_errors_say_where_it_lies():
    v = tf.Variable(tf.ones([4]), name="kernel")
    for mesh, layout, where in [
        (POINTS[2], (), "whole on device 2,"),
        (line(2, 3), (B,), "whole on devices 2, 3,"),
        (line(2, 3), (S(0),), r"in parts on devices 2, 3 \(S\(0\) over a:2\),"),
    ]:
        lay_out(v, layout, mesh)
        tf.raw_ops.AssignVariableOp(resource=v.handle, value=tf.zeros([4]))
        with pytest.raises(RuntimeError, match=f"kernel:0, which lies {where}"):
            v.numpy()
    with pytest.raises(ValueError, match=r"the layout \(\) is not for the mesh a:2; give one entry per axis"):
        lay_out(v, (), line(2, 3))
    with pytest.raises(ValueError, match=r"the layout B is not for the mesh without axes"):
        lay_out(v, (B,), POINTS[2])


def test_a_step_finds_its_variables_again():
    v, w = tf.Variable(tf.range(8.0)), tf.Variable(2.0)
    step = wh.function(lambda x: tf.reduce_sum(v.assign_add(x) * w))
    x = np.ones(8, "float32")
    assert float(step(x)) == 2 * 36
    lay_out(v, (B,), line(2, 3))
    lay_out(w, (), POINTS[1])
    assert float(step(x)) == 2 * 44
    assert not w.in_parts
    assert float(step(x)) == 2 * 52
    np.testing.assert_array_equal(v, np.arange(8) + 3)


SHAPE = (6, 4)
AXES = {1: [(Axis("a", 1),)], 2: [(Axis("a", 2),), (Axis("a", 2, (3, 1)),)], 3: [(Axis("a", 3),)]}
AXES[4] = [(Axis("a", 4),), (Axis("a", 2), Axis("b", 2))]
MESHES = st.permutations(range(4)).flatmap(
    lambda order: st.one_of(
        st.just(Mesh((), tuple(order[:1]))),
        st.integers(1, 4).flatmap(lambda n: st.sampled_from(AXES[n]).map(lambda axes: Mesh(axes, tuple(order[:n])))),
    )
)
SBPS = st.sampled_from([B, B, S(0), S(1), P, PMAX])
PLACES = MESHES.flatmap(lambda mesh: st.tuples(st.tuples(*[SBPS] * len(mesh.axes)), st.just(mesh)))
WRITES = st.sampled_from(["assign", "assign_add", "scatter_add", "slice", "function", "read by a function", "none"])


def write(how, v, model, function, number):
    """Does the same to a variable and to the array that it should equal."""
    if how == "assign":
        v.assign(np.full(SHAPE, number))
        model[:] = number
    elif how == "assign_add":
        v.assign_add(np.full(SHAPE, number))
        model += number
    elif how == "scatter_add":
        v.scatter_add(tf.IndexedSlices(np.full([2, 4], number), [5, 1]))
        model[[5, 1]] += number
    elif how == "slice":
        v[1:3].assign(np.full([2, 4], number))
        model[1:3] = number
    elif how == "function":
        function(tf.constant(number, v.dtype))
        model += number
    elif how == "read by a function":
        function.read()


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(st.tuples(PLACES, WRITES), min_size=1, max_size=6), st.integers(0, 3))
def test_moves_keep_the_value(journey, own):
    model = np.arange(24.0).reshape(SHAPE)
    with tf.device(f"CPU:{own}"):
        v = tf.Variable(model)
    handle = v.handle
    function = tf.function(lambda x: v.assign_add(x * tf.ones(SHAPE, x.dtype)), autograph=False)
    function.read = tf.function(lambda: v + 1, autograph=False)
    write("function", v, model, function, 1.0)
    for number, ((layout, mesh), how) in enumerate(journey, 2):
        stored = lay_out(v, layout, mesh)
        assert (stored.layout, stored.mesh, stored.parts) == (layout, mesh, tuple(range(mesh.size)))
        assert v.in_parts != has_own(v)
        for part, one in zip(stored.parts, stored.handles, strict=True):
            first = mesh.first_alike(part, layout)
            assert one.device.endswith(f"CPU:{mesh.device(first) if v.in_parts else own}")
            local = tf.raw_ops.ReadVariableOp(resource=one, dtype=v.dtype)
            assert tuple(local.shape) == mesh.local_shape(SHAPE, layout, part)
        write(how, v, model, function, float(number))
        np.testing.assert_array_equal(v, model)
    assert v.handle is handle
    lay_out(v, (B, B), SQUARE)
    assert has_own(v)
    np.testing.assert_array_equal(v, model)
