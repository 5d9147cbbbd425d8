"""A variable in parts does what a plain one does: read, assigned, differentiated, saved, copied, in any layout."""

import copy
import pickle

import numpy as np
import pytest
import tensorflow as tf

from whaleish import world
from whaleish.mesh import Axis, Mesh
from whaleish.sbp import B, S, parse_layout
from whaleish.state import LaidOutVariable, lay_out, settle_all, storage
from whaleish.state.tf_private import ResourceVariable
from whaleish.state.variable import LENT

LINE = Mesh((Axis("a", 3),))
SHARES = Mesh((Axis("a", 3, (1, 0, 2)),), (3, 1, 2))
SQUARE = Mesh((Axis("a", 2), Axis("b", 2)))
STAGE = Mesh((Axis("a", 2),), (2, 3))
POINT = Mesh((), (1,))
LAYOUTS = [
    *[(LINE, layout) for layout in ("S(0)", "S(1)", "P", "Pmax", "Pmin", "B")],
    *[(SHARES, layout) for layout in ("S(0)", "S(1)")],
    *[(SQUARE, layout) for layout in ("S(0),S(1)", "S(0),S(0)", "B,S(0)", "S(1),B", "P,S(0)", "P,P", "Pmax,S(1)")],
    *[(STAGE, layout) for layout in ("B", "S(0)", "P")],
    (POINT, ""),
]
each_layout = pytest.mark.parametrize(
    ("mesh", "layout"), LAYOUTS, ids=[f"{mesh.text()}-{layout}".replace(" ", "") for mesh, layout in LAYOUTS]
)


@pytest.fixture(autouse=True)
def _devices():
    world.init(virtual_devices=4)


def parse(layout):
    return parse_layout(layout) if layout else ()


def make(mesh=LINE, layout="S(0)", shape=(7, 5), **options):
    value = np.random.default_rng(0).normal(size=shape).astype(options.pop("dtype", "float32"))
    variable = tf.Variable(value, **options)
    lay_out(variable, parse(layout), mesh)
    return variable, value


@each_layout
def test_storage(mesh, layout):
    variable, _ = make(mesh, layout)
    stored = storage(variable)
    assert (stored.mesh, stored.layout) == (mesh, parse(layout))
    assert stored.parts == tuple(range(mesh.size))
    assert variable.in_parts == ((mesh, layout) != (LINE, "B"))
    assert all(handle is variable.handle for handle in stored.handles) != variable.in_parts
    for part, handle in zip(stored.parts, stored.handles, strict=True):
        local = tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float32)
        assert tuple(local.shape) == mesh.local_shape((7, 5), stored.layout, part)
        position = [
            0 if sbp.is_broadcast else place for sbp, place in zip(stored.layout, mesh.coordinate(part), strict=True)
        ]
        owner = next(k for k in range(mesh.size) if mesh.coordinate(k) == tuple(position))
        assert handle.device.endswith(f"CPU:{mesh.devices[owner]}")


@each_layout
def test_reads(mesh, layout):
    v, value = make(mesh, layout)
    for read in (v, v.value(), v.read_value(), v.numpy(), np.asarray(v), tf.convert_to_tensor(v), tf.identity(v)):
        np.testing.assert_array_equal(read, value)
    assert repr(value[0, 0])[:4] in repr(v) or "numpy=" in repr(v)
    np.testing.assert_array_equal(v[1:3], value[1:3])
    np.testing.assert_array_equal(v[0], value[0])
    np.testing.assert_allclose(v * 2 + v, 3 * value, rtol=1e-6)
    np.testing.assert_allclose(2 - v, 2 - value)
    np.testing.assert_allclose(tf.matmul(v, v, transpose_b=True), value @ value.T, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(tf.gather(v, [2, 0]), value[[2, 0]])
    np.testing.assert_array_equal(v.sparse_read([[1, 6]]), value[[[1, 6]]])
    np.testing.assert_array_equal(v.gather_nd([[1, 2]]), value[[1], [2]])
    assert v.is_initialized()
    assert (v.shape, v.dtype) == ((7, 5), tf.float32)


@each_layout
def test_gradients(mesh, layout):
    v, value = make(mesh, layout)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(v)
        loss = tf.reduce_sum(v * v)
        rows = tf.reduce_sum(tf.gather(v, [2, 2, 0]))
        with tf.GradientTape() as inner:
            cube = tf.reduce_sum(v**3)
        first = inner.gradient(cube, v)
    np.testing.assert_allclose(tape.gradient(loss, v), 2 * value)
    np.testing.assert_allclose(tape.gradient(first, v), 6 * value, rtol=1e-6)
    expected = np.zeros_like(value)
    expected[2], expected[0] = 2, 1
    np.testing.assert_allclose(tf.convert_to_tensor(tape.gradient(rows, v)), expected)
    with tf.autodiff.ForwardAccumulator(v, tf.ones_like(v)) as accumulator:
        loss = tf.reduce_sum(v * v)
    np.testing.assert_allclose(accumulator.jvp(loss), np.sum(2 * value), rtol=1e-5)


def test_frozen_variables_are_not_watched():
    v, _ = make(trainable=False)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(v * v)
    assert tape.gradient(loss, v) is None


WRITES = {
    "assign": lambda v: v.assign(tf.ones([7, 5])),
    "assign_numpy": lambda v: v.assign(np.full([7, 5], 2.0)),
    "assign_add": lambda v: v.assign_add(tf.ones([7, 5])),
    "assign_sub": lambda v: v.assign_sub(tf.fill([7, 5], 3.0)),
    "no_read": lambda v: v.assign_add(tf.ones([7, 5]), read_value=False),
    "scatter_add": lambda v: v.scatter_add(tf.IndexedSlices(tf.ones([2, 5]), [6, 1])),
    "scatter_sub": lambda v: v.scatter_sub(tf.IndexedSlices(tf.ones([2, 5]), [6, 1])),
    "scatter_mul": lambda v: v.scatter_mul(tf.IndexedSlices(2 * tf.ones([1, 5]), [3])),
    "scatter_div": lambda v: v.scatter_div(tf.IndexedSlices(2 * tf.ones([1, 5]), [3])),
    "scatter_max": lambda v: v.scatter_max(tf.IndexedSlices(tf.ones([1, 5]), [3])),
    "scatter_min": lambda v: v.scatter_min(tf.IndexedSlices(tf.ones([1, 5]), [3])),
    "scatter_update": lambda v: v.scatter_update(tf.IndexedSlices(tf.ones([1, 5]), [3])),
    "batch_scatter_update": lambda v: v.batch_scatter_update(
        tf.IndexedSlices(tf.ones([7, 1]), tf.zeros([7, 1], "int32"))
    ),
    "scatter_nd_add": lambda v: v.scatter_nd_add([[2, 3]], [1.0]),
    "scatter_nd_sub": lambda v: v.scatter_nd_sub([[2, 3]], [1.0]),
    "scatter_nd_max": lambda v: v.scatter_nd_max([[2, 3]], [9.0]),
    "scatter_nd_min": lambda v: v.scatter_nd_min([[2, 3]], [-9.0]),
    "scatter_nd_update": lambda v: v.scatter_nd_update([[2, 3]], [1.0]),
    "slice": lambda v: v[1:4, ::2].assign(tf.zeros([3, 3])),
}


@pytest.mark.parametrize("write", WRITES)
def test_writes(write):
    for mesh, layout in LAYOUTS:
        v, value = make(mesh, layout)
        plain = ResourceVariable(value)
        expected, got = WRITES[write](plain), WRITES[write](v)
        np.testing.assert_allclose(v, plain, rtol=1e-6, err_msg=layout)
        assert (got is None) == (expected is None)
        if got is not None:
            np.testing.assert_allclose(got, plain, rtol=1e-6)
        assert id(v) not in LENT


def test_wrong_shapes_are_refused():
    v, value = make()
    for write in (v.assign, v.assign_add, v.assign_sub):
        with pytest.raises(ValueError, match=r"\(7, 5\)"):
            write(tf.ones([5, 7]))
    np.testing.assert_array_equal(v, value)


@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "float16", "int32", "int64", "bool", "complex64", "uint8"])
def test_types(dtype):
    value = tf.cast(tf.reshape(tf.range(12), [6, 2]) % 3, dtype)
    v = tf.Variable(value, trainable=False)
    lay_out(v, (S(0),), LINE)
    np.testing.assert_array_equal(v, value)
    assert storage(v).handles[0].device.endswith("CPU:0")


def test_strings():
    v = tf.Variable(["a", "b", "c"], trainable=False)
    lay_out(v, (S(0),), LINE)
    assert v.numpy().tolist() == [b"a", b"b", b"c"]


@each_layout
def test_a_change_of_layout_keeps_the_value_and_the_handle(mesh, layout):
    v, value = make(mesh, layout)
    handle = v.handle
    for other, over in ((layout, mesh), ("S(1)", LINE), ("B", LINE), (layout, mesh)):
        lay_out(v, parse(other), over)
        np.testing.assert_array_equal(v, value)
    lay_out(v, (B,), LINE)
    assert v.handle is handle
    np.testing.assert_array_equal(tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float32), value)
    v.assign_add(tf.ones_like(v))
    np.testing.assert_array_equal(v, value + 1)


def test_a_layout_that_is_whole_copies_nothing():
    v = tf.Variable(tf.ones([4]))
    handle = v.handle
    assert lay_out(v, (B,), LINE).handles == (handle,) * 3
    assert storage(v).handles[0] is handle
    assert storage(tf.Variable(1.0)).layout == ()


def test_the_raw_handle_raises_and_never_lies():
    v, value = make()
    with pytest.raises(tf.errors.FailedPreconditionError):
        tf.raw_ops.ReadVariableOp(resource=v.handle, dtype=tf.float32)
    with pytest.raises(tf.errors.NotFoundError):
        tf.raw_ops.AssignAddVariableOp(resource=v.handle, value=value)
    tf.raw_ops.AssignVariableOp(resource=v.handle, value=value * 2)
    with pytest.raises(RuntimeError, match="did not reach"):
        v.numpy()
    np.testing.assert_array_equal(v, value)


@pytest.mark.parametrize(
    ("layout", "mesh", "said"),
    [("S(0),B", LINE, "one entry per axis"), ("S(2)", LINE, "no dim 2"), ("S(0)", Mesh((Axis("a", 5),)), "device 4")],
)
def test_layouts_that_do_not_fit_are_refused(layout, mesh, said):
    v, value = make()
    with pytest.raises(ValueError, match=said):
        lay_out(v, parse(layout), mesh)
    np.testing.assert_array_equal(v, value)


def test_variables_that_are_made_in_a_function():
    class Counter(tf.Module):
        @tf.function
        def __call__(self, x):
            if not hasattr(self, "seen"):
                self.seen = tf.Variable(0.0)
                with tf.init_scope():
                    self.lifted = tf.Variable(tf.ones([4]))
            return self.seen.assign_add(x) + self.lifted[0]

    count = Counter()
    assert [float(count(1.0)), float(count(1.0))] == [2, 3]
    lay_out(count.lifted, (S(0),), LINE)
    assert [float(count(1.0)), float(count(1.0))] == [4, 5]
    with pytest.raises(ValueError, match="in another thread"):
        lay_out(count.seen, (S(0),), LINE)


def test_after_clear_session_init_is_called_again():
    keras = pytest.importorskip("keras")
    (whole, _), (parts, value) = make(layout="B"), make()
    keras.utils.clear_session()
    np.testing.assert_array_equal(whole, value)
    np.testing.assert_array_equal(parts, value)
    with pytest.raises(ValueError, match="clear_session"):
        lay_out(tf.Variable(tf.ones([4])), (S(0),), LINE)
    world.init(virtual_devices=4)
    lay_out(tf.Variable(tf.ones([4])), (S(0),), LINE)


def test_a_variable_from_before_init():
    early = ResourceVariable(tf.ones([4]))
    assert lay_out(early, (B,), LINE).handles == (early.handle,)
    with pytest.raises(ValueError, match=r"wh.init\(\)"):
        lay_out(early, (S(0),), LINE)


def test_copies():
    v, value = make(name="kernel")
    for other in (copy.deepcopy(v), pickle.loads(pickle.dumps(v)), copy.deepcopy({"v": v, "w": [v]})["w"][0]):
        assert isinstance(other, LaidOutVariable)
        assert not other.in_parts
        np.testing.assert_array_equal(other, value)
        other.assign(value * 0)
    np.testing.assert_array_equal(v, value)
    assert copy.copy(v) is v


def test_numbers():
    v = tf.Variable([3.0])
    lay_out(v, (S(0),), Mesh((Axis("a", 2),)))
    assert bool(v[0] > 1)
    assert float(v[0]) == 3
    counter = tf.Variable(2, trainable=False)
    lay_out(counter, parse_layout("P"), LINE)
    assert int(counter) == 2
    assert bool(counter)
    counter.assign_add(1)
    assert counter.numpy() == 3


class TestPlainFunctions:
    """Functions traced before, while and after a variable lay in parts, called in each of these states."""

    @each_layout
    def test_reads_writes_and_gradients(self, mesh, layout):
        value = np.random.default_rng(0).normal(size=(7, 5)).astype("float32")
        v = tf.Variable(value)

        def make_functions():
            read = tf.function(lambda: tf.reduce_sum(v * v), autograph=False)
            inner = tf.function(lambda: v.assign_add(tf.ones_like(v)), autograph=False)

            @tf.function(autograph=False)
            def outer():
                inner()
                with tf.GradientTape() as tape:
                    loss = tf.reduce_sum(v**3)
                return tape.gradient(loss, v)

            return read, inner, outer

        def check(functions):
            nonlocal value
            for read, inner, outer in functions:
                with tf.GradientTape() as tape:
                    loss = read()
                np.testing.assert_allclose(loss, np.sum(value * value), rtol=1e-5)
                np.testing.assert_allclose(tape.gradient(loss, v), 2 * value, rtol=1e-6)
                inner()
                value = value + 1
                np.testing.assert_allclose(v, value, rtol=1e-6)
                settle_all()
                np.testing.assert_allclose(outer(), 3 * (value + 1) ** 2, rtol=1e-5)
                value = value + 1
                settle_all()
                np.testing.assert_allclose(v, value, rtol=1e-6)

        functions = [make_functions()]
        check(functions)
        lay_out(v, parse(layout), mesh)
        check(functions)
        functions.append(make_functions())
        check(functions)
        lay_out(v, (B,), LINE)
        check(functions)
        lay_out(v, (S(1),), LINE)
        check(functions)

    def test_a_loan_ends_when_the_parts_are_used(self):
        v, value = make()
        read = tf.function(lambda: v + 1, autograph=False)
        np.testing.assert_array_equal(read(), value + 1)
        assert LENT.get(id(v)) is v
        np.testing.assert_array_equal(v, value)
        v.assign(value * 3)
        assert id(v) not in LENT
        np.testing.assert_array_equal(read(), value * 3 + 1)
        handle = storage(v).handles[0]
        assert id(v) not in LENT
        np.testing.assert_array_equal(tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float32), (value * 3)[:3])

    def test_as_an_argument_it_raises(self):
        v, _ = make()
        with pytest.raises(tf.errors.FailedPreconditionError):
            tf.function(lambda x: x + 1, autograph=False)(v)

    def test_in_a_loop_and_a_branch(self):
        v, value = make()

        @tf.function
        def loop(n):
            total = tf.zeros_like(v)
            for _ in tf.range(n):
                if tf.reduce_sum(total) > 1e9:
                    total += 1
                else:
                    total += v
            return total

        np.testing.assert_allclose(loop(3), 3 * value, rtol=1e-6)
