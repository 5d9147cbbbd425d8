"""Variables on some of the ranks: others store nothing, all can read, and what was assigned is compared."""

import copy
import itertools

import numpy as np
import psutil
import pytest
import tensorflow as tf

from whaleish import world
from whaleish.mesh import Axis, Mesh
from whaleish.sbp import PMAX, B, P, S
from whaleish.state import (
    assigned_number,
    broadcast_from_chief,
    forget_assigned,
    gather,
    lay_out,
    storage,
)

pytestmark = pytest.mark.ranks
each_size = pytest.mark.parametrize("ranks", [2, 3], indirect=True)


def line(*devices):
    return Mesh((Axis("a", len(devices)),), devices)


def everywhere():
    return line(*range(world.size()))


def has_own(variable):
    """Whether there is storage under the variable's own handle."""
    return bool(tf.raw_ops.VarIsInitializedOp(resource=variable.handle))


def check_storage(variable, layout, mesh, in_place):
    """What this rank stores is its piece, if the mesh has it, and nothing else."""
    stored = storage(variable)
    assert (stored.layout, stored.mesh) == (layout, mesh)
    assert (variable.in_parts, has_own(variable)) == (not in_place, in_place)
    assert [mesh.device(part) for part in stored.parts] == [world.rank()] * (world.rank() in mesh.devices)
    assert len(stored.handles) == len(stored.parts)
    for part, handle in zip(stored.parts, stored.handles, strict=True):
        assert (handle is variable.handle) == in_place
        local = tf.raw_ops.ReadVariableOp(resource=handle, dtype=variable.dtype)
        assert tuple(local.shape) == mesh.local_shape(variable.shape, layout, part)


def places():
    """Every layout on every mesh of one axis, and those of a mesh without axes."""
    size = world.size()
    for device in range(size):
        yield (), Mesh((), (device,))
    for count in range(1, size + 1):
        for devices in itertools.permutations(range(size), count):
            for sbp in (B, S(0), S(1), P, PMAX):
                yield (sbp,), line(*devices)


def journey(dtype, steps):
    rng = np.random.default_rng(0)  # the same on all ranks
    some = [place for place in places() if dtype != "bool" or P not in place[0]]  # bools have no sum
    model = tf.cast(np.arange(35).reshape(7, 5) % 3, dtype)
    v = tf.Variable(model, name="kernel", trainable=False)
    for number, choice in enumerate(rng.integers(0, len(some), steps)):
        layout, mesh = some[choice]
        lay_out(v, layout, mesh)
        whole_everywhere = len(mesh.devices) == world.size() and layout in ((), (B,))
        check_storage(v, layout, mesh, in_place=whole_everywhere)
        how = number % (2 if dtype == "bool" else 4)
        if how == 1:
            model = tf.cast(rng.integers(0, 2, [7, 5]), dtype)
            v.assign(model)
        elif how == 2:
            model += tf.cast(number, dtype)
            v.assign_add(tf.fill([7, 5], tf.cast(number, dtype)))
        elif how == 3:
            model = tf.tensor_scatter_nd_update(model, [[6], [0]], tf.zeros([2, 5], model.dtype))
            v.scatter_update(tf.IndexedSlices(tf.zeros([2, 5], model.dtype), [6, 0]))
        read = gather(v) if number % 3 == 0 else v.numpy()
        np.testing.assert_array_equal(read, model, err_msg=f"{layout} {mesh}")
        check_storage(v, layout, mesh, in_place=whole_everywhere)
    lay_out(v, (B,), everywhere())
    check_storage(v, (B,), everywhere(), in_place=True)
    np.testing.assert_array_equal(v.numpy(), model)
    return True


@each_size
def test_moves_keep_the_value(ranks):
    for dtype, steps in (("float32", 16), ("bfloat16", 6), ("bool", 4)):
        assert all(ranks.run(journey, dtype, steps))


def reader(variable):
    return tf.function(lambda: variable + 1, autograph=False)


def as_a_variable(folder):
    size = world.size()
    last = size - 1
    stage, point = line(*range(1, size)), Mesh((), (last,))
    value = np.arange(35, dtype="float32").reshape(7, 5)
    for layout, mesh in (((B,), stage), ((), point), ((S(0),), stage)):
        v = tf.Variable(value, name="kernel")
        lay_out(v, layout, mesh)
        assert v.on_several_ranks
        v[1:3].assign(tf.zeros([2, 5]))
        v.assign(value)
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(v * v)
        np.testing.assert_array_equal(tape.gradient(loss, v), 2 * value)
        other = copy.deepcopy(v)
        assert not other.in_parts
        np.testing.assert_array_equal(other, value)
        other.assign(value * 0)
        checkpoint, path = tf.train.Checkpoint(v=v), f"{folder}/{world.rank()}"
        checkpoint.write(path)
        np.testing.assert_array_equal(tf.train.load_checkpoint(path).get_tensor("v/.ATTRIBUTES/VARIABLE_VALUE"), value)
        v.assign(value * 0)
        checkpoint.read(path).assert_consumed()
        np.testing.assert_array_equal(gather({"v": [v]})["v"][0], value)
        check_storage(v, layout, mesh, in_place=False)
        raised = []
        for use in (
            reader(v),
            lambda v=v: lay_out(v, (B,), line(size)),
            lambda: lay_out(tf.Variable([1.0], shape=tf.TensorShape(None)), (), point),
        ):
            try:
                use()
            except (RuntimeError, ValueError) as error:
                raised.append(str(error))
        plain, outside, shapeless = raised
        assert plain.startswith(f"kernel:0 lies {v.parts.where()}, one device per rank, and a plain tf.function"), plain
        assert f"the mesh has device {size}; there are {size}" in outside, outside
        assert "only a variable whose shape is known" in shapeless, shapeless
    for small in (np.float64(7), np.zeros([0, 3]), np.complex64([1j, 2])):
        v = tf.Variable(small)
        for layout, mesh in (((), point), ((B,), stage), ((B,), everywhere())):
            lay_out(v, layout, mesh)
            np.testing.assert_array_equal(v.numpy(), small)
    return True


@each_size
def test_it_does_what_variables_do(ranks, tmp_path):
    assert all(ranks.run(as_a_variable, str(tmp_path)))


def comparisons():
    rank, point = world.rank(), Mesh((), (world.size() - 1,))
    own, there = (tf.Variable(tf.fill([3], float(rank)), name=name) for name in ("own", "there"))
    lay_out(there, (), point)
    broadcast = broadcast_from_chief([own, there])
    seen = {"broadcast": (broadcast, own.numpy().tolist(), there.numpy().tolist())}

    def compare(what):
        seen[what] = assigned_number([own, there])
        forget_assigned([own, there])

    compare("nothing")
    there.assign([1.0, 2.0, 3.0])
    compare("alike on a stage")
    there.assign([1.0, 2.0, rank])
    compare("differently on a stage")
    lay_out(there, (B,), everywhere())
    compare("moved back, nothing assigned")
    there.assign([1.0, 2.0, rank])
    lay_out(there, (), point)
    compare("differently in place, then moved")
    lay_out(there, (B,), everywhere())
    there.assign([1.0, 2.0, 3.0])
    lay_out(there, (), point)
    compare("alike in place, then moved")
    return seen


@each_size
def test_what_was_assigned_is_compared(ranks):
    seen = ranks.run(comparisons)
    last = ranks.size - 1
    for one in seen:
        assert one["broadcast"][0] == ["own:0"]
        assert one["broadcast"][1:] == ([0.0] * 3, [float(last)] * 3)
        assert one["nothing"] == one["moved back, nothing assigned"] == 0
        assert one["alike on a stage"] == seen[0]["alike on a stage"] != 0
        assert one["alike in place, then moved"] == seen[0]["alike in place, then moved"] != 0
    for what in ("differently on a stage", "differently in place, then moved"):
        assert len({one[what] for one in seen}) == ranks.size, what


def steps():
    import whaleish as wh

    size, rank = world.size(), world.rank()
    v, w = tf.Variable(tf.range(8.0), name="v"), tf.Variable(2.0, name="w")
    step = wh.function(lambda x: tf.reduce_sum(v.assign_add(x) * w))
    x = np.ones(8, "float32")
    results = [float(step(x))]
    lay_out(v, (B,), line(*range(1, size)))
    lay_out(w, (), Mesh((), (size - 1,)))
    v.assign(tf.range(8.0) + 2)
    results.append(float(step(x)))
    assert not w.in_parts
    lay_out(w, (), Mesh((), (size - 1,)))
    w.assign(3.0 + rank)
    try:
        step(x)
    except RuntimeError as error:
        return results, type(error).__name__, str(error)
    return results, "", ""


@each_size
def test_steps_find_their_variables_and_what_differs(ranks):
    for results, kind, message in ranks.run(steps):
        assert results == [2 * 36, 2 * 52]
        assert kind == "DisagreementError"
        assert "w" in message


def memory(megabytes):
    def resident():
        return psutil.Process().memory_info().rss / 1e6

    stage = line(*range(1, world.size()))
    lay_out(tf.Variable(tf.ones([4, 4])), (B,), stage)
    before = resident()
    v = tf.Variable(tf.fill([megabytes // 4, 1_000_000], 1.0))
    lay_out(v, (B,), stage)
    # TensorFlow's allocator may keep what is freed; then it hands it out again.
    other = tf.fill([megabytes // 4, 1_000_000], 1.0)
    held = resident() - before
    del other
    lay_out(v, (S(1),), stage)  # within the stage, by way of the other ranks
    return held, sum(resource.read().shape.num_elements() for resource in v.parts.resources), has_own(v)


@pytest.mark.parametrize("ranks", [3], indirect=True)
def test_ranks_outside_hold_nothing(ranks):
    (first, none, own), *others = ranks.run(memory, 80)
    assert first < 80 + 40, "room is taken up by what was freed"
    assert (none, own) == (0, False)
    for _, elements, own in others:
        assert (elements, own) == (10_000_000, False)
