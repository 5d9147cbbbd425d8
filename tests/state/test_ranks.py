"""Variables in parts on real ranks: reading is a collective that takes place or raises, on every rank, in time."""

import time

import numpy as np
import pytest
import tensorflow as tf

from tests.cluster.harness import run_script
from whaleish import world
from whaleish.mesh import Axis, Mesh
from whaleish.sbp import parse_layout
from whaleish.state import broadcast_from_chief, gather, lay_out, storage

pytestmark = pytest.mark.ranks
LAYOUTS = ["S(0)", "S(1)", "P", "Pmax", "B"]
TYPES = [
    "float32",
    "float64",
    "float16",
    "bfloat16",
    "int32",
    "int64",
    "uint8",
    "uint32",
    "uint64",
    "bool",
    "complex64",
]


def line(order=None):
    size = world.size()
    return Mesh((Axis("a", size),), tuple(order) if order else ())


def reads(layout, dtype):
    world.init()  # again, as the harness clears Keras's session
    value = tf.cast(tf.reshape(tf.range(35), [7, 5]) % 3, dtype)
    for order in (None, reversed(range(world.size()))):
        v = tf.Variable(value, name="kernel", trainable=False)
        mesh = line(order)
        lay_out(v, parse_layout(layout), mesh)
        if layout != "B":
            (part,), (handle,) = storage(v).parts, storage(v).handles
            assert mesh.devices[part] == world.rank()
            local = tf.raw_ops.ReadVariableOp(resource=handle, dtype=v.dtype)
            assert tuple(local.shape) == mesh.local_shape(v.shape, parse_layout(layout), part)
        for read in (v.numpy(), gather(v), gather({"v": [v]})["v"][0], tf.convert_to_tensor(v).numpy()):
            np.testing.assert_array_equal(read, value)
        lay_out(v, parse_layout("S(1)"), mesh)
        np.testing.assert_array_equal(v.numpy(), value)
        lay_out(v, parse_layout("B"), mesh)
        np.testing.assert_array_equal(v.numpy(), value)


@pytest.mark.parametrize(
    ("layout", "dtype"),
    [(layout, "float32") for layout in LAYOUTS] + [("S(0)", dtype) for dtype in TYPES if dtype != "float32"],
)
def test_reads(ranks, layout, dtype):
    ranks.run(reads, layout, dtype)


def square():
    world.init()  # again, as the harness clears Keras's session
    value = np.arange(35, dtype="float32").reshape(7, 5)
    mesh = Mesh((Axis("a", 2), Axis("b", 2)), (2, 0, 3, 1))
    for layout in ("S(0),S(1)", "S(0),S(0)", "B,S(0)", "S(1),B", "P,S(1)", "Pmax,P"):
        v = tf.Variable(value)
        lay_out(v, parse_layout(layout), mesh)
        np.testing.assert_array_equal(v.numpy(), value, err_msg=layout)
        v.assign_add(tf.ones_like(v))
        np.testing.assert_array_equal(gather(v), value + 1, err_msg=layout)


@pytest.mark.parametrize("ranks", [4], indirect=True)
def test_two_axes(ranks):
    ranks.run(square)


def writes():
    world.init()  # again, as the harness clears Keras's session
    value = np.arange(35, dtype="float32").reshape(7, 5)
    v = tf.Variable(value)
    lay_out(v, parse_layout("S(0)"), line())
    v.assign_add(tf.ones_like(v))
    v.scatter_add(tf.IndexedSlices(tf.ones([2, 5]), [6, 0]))
    v[1:3].assign(tf.zeros([2, 5]))
    value += 1
    value[[6, 0]] += 1
    value[1:3] = 0
    np.testing.assert_array_equal(v.numpy(), value)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(v * v)
    np.testing.assert_array_equal(tape.gradient(loss, v), 2 * value)
    try:
        tf.function(lambda: v + 1, autograph=False)()
    except RuntimeError as error:
        return str(error)


def test_writes_gradients_and_plain_functions(ranks):
    for message in ranks.run(writes):
        assert "wh.function" in message
        assert "wh.gather" in message


def timed(function):
    """Seconds, and the message of what was raised."""
    start = time.monotonic()
    try:
        function()
    except RuntimeError as error:
        return time.monotonic() - start, f"{type(error).__name__} {error}"
    return time.monotonic() - start, ""


def lone_read(limit):
    world.init()  # again, as the harness clears Keras's session
    from whaleish.state import ranks as module

    usual, module.READ_TIMEOUT = module.READ_TIMEOUT, limit
    v = tf.Variable(tf.ones([8, 2]), name="kernel")
    lay_out(v, parse_layout("S(0)"), line())
    first = timed(v.numpy) if world.rank() == 0 else (time.sleep(2 * limit), "")
    module.READ_TIMEOUT = usual
    # Both read together later: nothing is out of step.
    second = timed(v.numpy)
    np.testing.assert_array_equal(gather(v), np.ones([8, 2]))
    return first, second, usual


def test_a_read_by_one_rank_alone_raises_in_time(ranks):
    ((seconds, message), again, usual), (_, other, _) = ranks.run(lone_read, 1.0)
    assert usual < 10
    assert seconds < 2
    assert message.startswith("AbsentError kernel:0 lies in parts on devices 0, 1 (S(0) over a:2)")
    assert "wh.gather" in message
    assert (again[1], other[1]) == ("", "")


def other_variables():
    world.init()  # again, as the harness clears Keras's session
    vs = [tf.Variable(tf.ones([8, 2]), name=name) for name in ("a", "b")]
    for v in vs:
        lay_out(v, parse_layout("S(0)"), line())
    return timed(lambda: gather(vs[world.rank()]))


def test_gather_of_other_variables_raises_everywhere(ranks):
    for seconds, message in ranks.run(other_variables):
        assert seconds < 10
        assert message.startswith("DisagreementError ranks call wh.gather with different variables")


def starts(counts):
    world.init()  # again, as the harness clears Keras's session
    rank = world.rank()
    rng = np.random.default_rng(rank)
    values = [tf.constant(rng.normal(size=(3, n))) for n in range(counts)]
    values += [tf.cast(rng.integers(0, 99, 50), dtype) for dtype in TYPES if dtype != "bool"]
    values += [tf.constant(rng.integers(0, 2, 50) > 0), tf.constant(float(rank)), tf.constant(7.0)]
    variables = [tf.Variable(value, name=f"v{n}") for n, value in enumerate(values)]
    variables.append(tf.Variable(f"rank {rank}", trainable=False))
    changed = broadcast_from_chief(variables)
    again = broadcast_from_chief(variables)
    rng = np.random.default_rng(0)
    for variable, n in zip(variables, range(counts), strict=False):
        np.testing.assert_array_equal(variable, rng.normal(size=(3, n)))
    return changed, again, [v.numpy().tobytes() for v in variables[:-1]], variables[-1].numpy()


def test_replicas_start_equal(ranks):
    first, second = ranks.run(starts, 30)
    assert first[:3] == second[:3]
    assert "v1" in first[0][0] or len(first[0]) > 30
    assert len(first[0]) == 29 + len(TYPES) + 1
    assert first[1] == []
    assert (first[3], second[3]) == (b"rank 0", b"rank 1")


def test_a_process_ends_with_a_read_in_flight():
    done = run_script(
        2,
        """
import tensorflow as tf
from whaleish import world
world.init()
from whaleish.mesh import Axis, Mesh
from whaleish.sbp import S
from whaleish.state import lay_out, ranks
ranks.READ_TIMEOUT = 1.0
v = tf.Variable(tf.ones([4]), name="kernel")
lay_out(v, (S(0),), Mesh((Axis("a", 2),)))
if world.rank() == 0:
    try:
        print(v.numpy())
    except RuntimeError as error:
        print("raised", type(error).__name__)
print("end of", world.rank())
""",
    )
    assert not done.timed_out, done.output
    assert done.survivors == ()
    assert done.status == 0, done.output
    assert "raised AbsentError" in done.output
    assert done.output.count("end of") == 2
