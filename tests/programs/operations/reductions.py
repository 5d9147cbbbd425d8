"""What runs along dims: reductions, extremes, scans, orders."""

from __future__ import annotations

from tests.programs.draft import Draft
from tests.programs.operations.catalogue import listed, operation

SUMS = listed("""
    tf.reduce_sum tf.reduce_mean tf.reduce_prod tf.reduce_logsumexp tf.math.reduce_variance tf.reduce_sum tf.reduce_mean
""")
SCANS = listed("tf.cumsum tf.math.cumprod tf.math.cumulative_logsumexp")


@operation
def reduction(d: Draft) -> None:
    x = d.ranked(1)
    d.add(f"{d.pick(SUMS)}({x}, {d.axes(x)}, keepdims={d.pick([False, True])})")


again = operation(reduction)


@operation
def norm(d: Draft) -> None:
    """Without its gradient, which divides by the one it is given: by 0 that is infinite, in summands not a number."""
    x = d.ranked(1)
    d.add(f"tf.stop_gradient(tf.math.reduce_euclidean_norm({x}, {d.axes(x)}, keepdims={d.pick([False, True])}))")


@operation
def extreme(d: Draft) -> None:
    x = d.ranked(1)
    axes = d.axes(x)
    d.distinct(x, axes)
    d.add(f"tf.{d.pick(['reduce_max', 'reduce_min'])}({x}, {axes}, keepdims={d.pick([False, True])})")


@operation
def place_of_extreme(d: Draft) -> None:
    x = d.ranked(1)
    axis = d.axis(x)
    d.distinct(x, [axis])
    d.add(f"tf.{d.pick(['argmax', 'argmin'])}({x}, {axis}, output_type=tf.{d.pick(['int32', 'int64'])})")


@operation
def scan(d: Draft) -> None:
    x = d.ranked(1)
    options = f"exclusive={d.pick([False, True])}, reverse={d.pick([False, True])}"
    code = d.pick(SCANS)
    if "log" in code:
        options = f"reverse={d.pick([False, True])}"
    d.add(f"{code}({x}, {d.axis(x)}, {options})")


@operation
def top(d: Draft) -> None:
    x = d.ranked(1)
    d.distinct(x, [len(d.shape(x)) - 1])
    d.add_list(f"tf.math.top_k({x}, {d.pick(range(1, d.shape(x)[-1] + 1))})")


@operation
def sort(d: Draft) -> None:
    x = d.ranked(1)
    axis = d.axis(x)
    d.distinct(x, [axis])
    d.add(f"tf.{d.pick(['sort', 'argsort'])}({x}, {axis}, {d.pick(['ASCENDING', 'DESCENDING'])!r})")


@operation
def segments(d: Draft) -> None:
    x = d.ranked(1)
    length = d.shape(x)[0]
    count = d.pick(range(1, 5))
    d.distinct(x, [0])
    if d.pick([True, False]):
        ids = sorted(d.pick(range(count)) for _ in range(length))
        d.add(f"tf.math.segment_{d.pick(listed('sum mean max min prod'))}({x}, {ids})")
    else:
        ids = [d.pick(range(-1, count)) for _ in range(length)]
        # Empty segments of an extreme hold the type's largest number, which a clip makes one of ours.
        kind = d.pick(listed("sum prod max min mean"))
        clip = ("tf.clip_by_value({}, -5.0, 5.0)" if kind in ("max", "min") else "{}").format
        d.add(clip(f"tf.math.unsorted_segment_{kind}({x}, {ids}, {count})"))


@operation
def sparse_segments(d: Draft) -> None:
    x = d.ranked(2)
    rows = [d.pick(range(d.shape(x)[0])) for _ in range(d.pick(range(1, 6)))]
    ids = sorted(d.pick(range(3)) for _ in rows)
    d.add(f"tf.sparse.segment_{d.pick(listed('sum mean sqrt_n'))}({x}, {rows}, {ids})")
