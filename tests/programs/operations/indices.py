"""Operations that find elements by indices."""

from __future__ import annotations

from tests.programs.draft import Draft
from tests.programs.operations.catalogue import listed, operation


def below(d: Draft, limit: int, *shape: int) -> str:
    """Indices below a limit: known ones, or numbers of the program's."""
    if limit < 1:
        limit = 1
    known = f"whole_numbers({', '.join(map(str, (d.pick(range(8)), limit, *shape)))})"
    if d.pick([True, False]):
        return known
    numbers = d.take(lambda value: value.shape == shape, "int32")
    return f"tf.math.floormod({numbers}, {limit})"


@operation
def gather(d: Draft) -> None:
    x = d.ranked(1)
    axis = d.axis(x)
    indices = below(d, d.shape(x)[axis], *d.pick([(), (3,), (5,), (2, 3), (1,)]))
    d.add(f"tf.gather({x}, {indices}, axis={axis})")


@operation
def look_up(d: Draft) -> None:
    """In a table of fresh rows."""
    rows = d.pick(range(2, 9))
    indices = below(d, rows, *d.pick([(4,), (5,), (2, 3)]))
    d.add(f"tf.nn.embedding_lookup({d.weight(rows, d.pick(range(1, 6)))}, {indices})")


@operation
def numbered_look_up(d: Draft) -> None:
    """By numbers that the program made."""
    rows = d.pick(range(2, 9))
    numbers = d.take(lambda value: value.shape.rank <= 2, d.pick(["int32", "int64"]))
    d.add(f"tf.gather({d.weight(rows, d.pick(range(1, 6)))}, {numbers} % {rows})")


@operation
def batch_gather(d: Draft) -> None:
    x = d.ranked(2)
    batch, length = d.shape(x)[:2]
    d.add(f"tf.gather({x}, {below(d, length, batch, d.pick(range(1, 4)))}, axis=1, batch_dims=1)")


@operation
def gather_nd(d: Draft) -> None:
    x = d.ranked(2)
    limit = min(d.shape(x)[:2])
    d.add(f"tf.gather_nd({x}, {below(d, limit, d.pick(range(1, 6)), d.pick([1, 2]))})")


@operation
def scatter_nd(d: Draft) -> None:
    x = d.ranked(1, 4)
    rows = d.pick(range(2, 7))
    indices = below(d, rows, d.shape(x)[0], 1)
    d.add(f"tf.scatter_nd({indices}, {x}, {[rows, *d.shape(x)[1:]]})")


@operation
def tensor_scatter(d: Draft) -> None:
    x = d.ranked(1, 4)
    code = d.pick(listed("add sub max min update"))
    rows = d.shape(x)[0]
    if code in ("add", "sub"):
        count = d.pick(range(1, 5))
        indices = below(d, rows, count, 1)
    else:  # each row once: which of two wins is not defined
        count = d.pick(range(1, rows + 1)) if rows else 1
        indices = str([[row] for row in d.order(rows)[:count]])
    update = d.weight(count, *d.shape(x)[1:])
    if code in ("max", "min"):
        d.unlike(f"tf.gather_nd({x}, {indices})", update)
    d.add(f"tf.tensor_scatter_nd_{code}({x}, {indices}, {update})")


@operation
def one_hot(d: Draft) -> None:
    numbers = d.take(lambda value: value.shape.rank < 4, d.pick(["int32", "int64"]))
    axis = d.pick([-1, 0])
    d.add(f"tf.one_hot({numbers}, {d.pick(range(2, 7))}, 0.75, -0.25, {axis}, tf.float64)")


@operation
def in_top(d: Draft) -> None:
    x = d.ranked(2, 2)
    d.distinct(x, [1])
    rows, classes = d.shape(x)
    targets = f"whole_numbers({d.pick(range(8))}, {classes}, {rows})"
    d.add(f"tf.math.in_top_k({targets}, tf.cast({x}, tf.float32), {d.pick([1, 2])})")


@operation
def numbered(d: Draft) -> None:
    """A range, as numbers."""
    x = d.ranked(1)
    d.add(f"{x} * 0.1 + tf.range({d.shape(x)[-1]}.0, dtype=tf.float64)")
