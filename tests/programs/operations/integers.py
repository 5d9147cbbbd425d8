"""Whole numbers and truth values."""

from __future__ import annotations

from tests.programs.draft import Draft
from tests.programs.operations.catalogue import listed, operation

BITS = listed("""
    tf.bitwise.bitwise_and({0},{1}) tf.bitwise.bitwise_or({0},{1}) tf.bitwise.bitwise_xor({0},{1})
    tf.bitwise.left_shift({0},{1}%3) tf.bitwise.right_shift({0},{1}%3) tf.bitwise.invert({0})
    tf.cast(tf.raw_ops.PopulationCount(x={0}),tf.int32)
""")
ARITHMETIC = listed("""
    {0}+{1} {0}-{1} {0}*{1} {0}//(1+tf.abs({1})) {0}%(1+tf.abs({1})) tf.maximum({0},{1}) tf.minimum({0},{1})
    tf.math.squared_difference({0},{1}) tf.truncatediv({0},1+tf.abs({1})) tf.raw_ops.Mod(x={0},y=1+tf.abs({1}))
    tf.less({0},{1}) tf.equal({0},{1}) tf.not_equal({0},{1}) tf.greater_equal({0},{1}) tf.sign({0}) -{0} tf.abs({0})
    tf.square({0})
""")
LOGIC = listed("""
    tf.logical_and({0},{1}) tf.logical_or({0},{1}) tf.math.logical_xor({0},{1}) tf.logical_not({0}) tf.equal({0},{1})
    tf.where({0},{1},tf.logical_not({1}))
""")
REDUCTIONS = listed("tf.reduce_sum tf.reduce_max tf.reduce_min tf.reduce_prod tf.reduce_mean")


@operation
def new_numbers(d: Draft) -> None:
    x = d.take()
    shape = ", ".join(map(str, (d.pick(range(8)), d.pick([2, 5, 9]), *d.shape(x))))
    d.add(f"tf.constant(whole_numbers({shape})) + tf.cast({d.off_steps(x)}, tf.int32)")


@operation
def arithmetic(d: Draft) -> None:
    x = d.take(dtype="int32")
    other = d.take(lambda value: value.shape == d.shape(x) or value.shape.rank == 0, "int32")
    d.add(d.pick(ARITHMETIC).format(x, other))


@operation
def bits(d: Draft) -> None:
    x = d.take(dtype="int32")
    other = d.take(lambda value: value.shape == d.shape(x), "int32")
    d.add(d.pick(BITS).format(x, f"tf.abs({other})"))


@operation
def logic(d: Draft) -> None:
    x = d.take(dtype="bool")
    other = d.take(lambda value: value.shape == d.shape(x), "bool")
    d.add(d.pick(LOGIC).format(x, other))


@operation
def reduction(d: Draft) -> None:
    x = d.ranked(1, dtype=d.pick(["int32", "int64"]))
    d.add(f"{d.pick(REDUCTIONS)}({x}, {d.axes(x)}, keepdims={d.pick([False, True])})")


@operation
def any_or_all(d: Draft) -> None:
    x = d.ranked(1, dtype="bool")
    d.add(f"tf.{d.pick(['reduce_any', 'reduce_all'])}({x}, {d.axes(x)}, keepdims={d.pick([False, True])})")


@operation
def conversion(d: Draft) -> None:
    x = d.take(dtype=d.pick(["int32", "int64", "bool"]))
    d.add(f"tf.cast({x}, tf.{d.pick(['float64', 'int32', 'int64'])})")
