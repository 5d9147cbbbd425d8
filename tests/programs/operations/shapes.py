"""Operations that move elements about, and that make tensors."""

from __future__ import annotations

from tests.programs.draft import Draft
from tests.programs.operations.catalogue import operation

TYPES = ["float64", "float64", "float64", "int32", "bool"]


def anything(d: Draft, least: int = 1, most: int = 6) -> str:
    """Mostly numbers with a gradient, at times others."""
    return d.ranked(least, most, d.pick(TYPES))


def factors(length: int) -> list[int]:
    return [k for k in range(1, length + 1) if length % k == 0]


@operation
def transpose(d: Draft) -> None:
    x = anything(d)
    d.add(f"tf.transpose({x}, {d.order(len(d.shape(x)))})")


@operation
def merge(d: Draft) -> None:
    x = anything(d, 2)
    shape = list(d.shape(x))
    at = d.pick(range(len(shape) - 1))
    d.add(f"tf.reshape({x}, {[*shape[:at], shape[at] * shape[at + 1], *shape[at + 2 :]]})")


@operation
def part(d: Draft) -> None:
    """One dim becomes two."""
    x = anything(d)
    shape = list(d.shape(x))
    at = d.axis(x)
    first = d.pick(factors(shape[at]) or [0])
    d.add(f"tf.reshape({x}, {[*shape[:at], first, shape[at] // first if first else 1, *shape[at + 1 :]]})")


@operation
def reshape(d: Draft) -> None:
    """To any shape."""
    x = anything(d, 0)
    rest, shape = int(d.values[x].shape.num_elements()), []
    for _ in range(d.pick(range(1, 4))):
        shape.append(d.pick(factors(rest) or [0]))
        rest = rest // shape[-1] if shape[-1] else 1
    d.add(f"tf.reshape({x}, {[*shape, rest]})")


@operation
def dims_of_size_one(d: Draft) -> None:
    x = anything(d, 0)
    if d.pick([False, True]):
        d.add(f"tf.squeeze({x})")
    else:
        d.add(f"tf.expand_dims({x}, {d.pick(range(len(d.shape(x)) + 1))})")


@operation
def concat(d: Draft) -> None:
    x = d.ranked(1)
    axis, shape = d.axis(x), list(d.shape(x))
    others = []
    for _ in range(d.pick(range(1, 3))):
        shape[axis] = d.pick(range(1, 5))
        others.append(d.weight(*shape))
    d.add(f"tf.concat([{', '.join([x, *others])}], {axis})")


@operation
def stack(d: Draft) -> None:
    x = d.ranked(0)
    others = [d.weight(*d.shape(x)) for _ in range(d.pick(range(1, 3)))]
    d.add(f"tf.stack([{', '.join([x, *others])}], {d.pick(range(len(d.shape(x)) + 1))})")


@operation
def split(d: Draft) -> None:
    x = anything(d)
    axis = d.axis(x)
    length = d.shape(x)[axis]
    if d.pick([False, True]):
        d.add_list(f"tf.split({x}, {d.pick(factors(length)[:4] or [1])}, {axis})")
    else:
        first = d.pick(range(length + 1))
        d.add_list(f"tf.split({x}, {[first, length - first]}, {axis})")


@operation
def unstack(d: Draft) -> None:
    x = anything(d)
    axis = d.axis(x)
    if not 1 <= d.shape(x)[axis] <= 4:
        axis = min(range(len(d.shape(x))), key=lambda k: d.shape(x)[k])
    d.add_list(f"tf.unstack({x}, axis={axis})[:4]")


@operation
def slice_(d: Draft) -> None:
    x = anything(d)
    begin = [d.pick(range(max(1, n))) for n in d.shape(x)]
    size = [d.pick([-1, *range(1, n - b + 1)]) for n, b in zip(d.shape(x), begin, strict=True)]
    d.add(f"tf.slice({x}, {begin}, {size})")


@operation
def strided_slice(d: Draft) -> None:
    x = anything(d)
    places = []
    for length in d.shape(x):
        kind = d.pick([":", "range", "index", "reverse", "new", "skip"])
        first = d.pick(range(max(1, length)))
        last = d.pick(range(first, length + 1))
        places.append(
            {
                ":": ":",
                "range": f"{first}:{last}",
                "index": f"{first}",
                "reverse": "::-1",
                "new": "None, :",
                "skip": f"{first}::2",
            }[kind]
        )
    d.add(f"{x}[{', '.join(places)}]")


@operation
def update_slice(d: Draft) -> None:
    x = d.ranked(1, 3)
    length = d.shape(x)[0]
    first = d.pick(range(max(1, length)))
    value = d.weight(length - first, *d.shape(x)[1:])
    d.add(
        f"tf.raw_ops.TensorStridedSliceUpdate(input={x}, begin=[{first}], end=[{length}], strides=[1], value={value})"
    )


@operation
def pad(d: Draft) -> None:
    x = d.ranked(1, 4)
    mode = d.pick(["CONSTANT", "CONSTANT", "REFLECT", "SYMMETRIC"])
    most = {"CONSTANT": 2, "REFLECT": 1, "SYMMETRIC": 1}[mode]
    pads = [[d.pick(range(most + 1)), d.pick(range(most + 1))] for _ in d.shape(x)]
    filler = f", constant_values={d.pick([0, 0, 0.5])}" if mode == "CONSTANT" else ""
    d.add(f"tf.pad({x}, {pads}, {mode!r}{filler})")


@operation
def tile(d: Draft) -> None:
    x = anything(d, 1, 4)
    d.add(f"tf.tile({x}, {[d.pick([1, 1, 2, 3]) for _ in d.shape(x)]})")


@operation
def broadcast(d: Draft) -> None:
    x = anything(d, 0, 4)
    shape = [d.pick(range(1, 5)) if length == 1 else length for length in d.shape(x)]
    d.add(f"tf.broadcast_to({x}, {[d.pick(range(1, 4)), *shape]})")


@operation
def reverse(d: Draft) -> None:
    x = anything(d)
    d.add(f"tf.reverse({x}, {d.axes(x)})")


@operation
def roll(d: Draft) -> None:
    x = anything(d)
    d.add(f"tf.roll({x}, {d.pick(range(-3, 4))}, {d.axis(x)})")


@operation
def filled(d: Draft) -> None:
    x = d.take()
    code = d.pick(["tf.fill({0}, {1})", "tf.ones({0}, tf.float64) * {1}"])
    d.add(code.format(list(d.shape(x)), d.take(lambda value: value.shape.rank == 0)))


@operation
def random(d: Draft) -> None:
    code = d.pick(
        [
            "tf.random.stateless_normal({0}, [{1}, 3], dtype=tf.float64)",
            "tf.random.stateless_uniform({0}, [{1}, 3], dtype=tf.float64)",
            "tf.random.stateless_truncated_normal({0}, [{1}, 3], dtype=tf.float64)",
            "tf.random.stateless_uniform({0}, [{1}, 3], -5, 9, tf.int32)",
            "tf.random.stateless_uniform({0}, [{1}, 3], None, None, tf.int32) % 100",
        ]
    )
    shape = d.shape(d.take())
    d.add(code.format(list(shape), d.pick(range(5))))


@operation
def dropout(d: Draft) -> None:
    x = d.take()
    d.add(f"tf.nn.experimental.stateless_dropout({x}, 0.3, [{d.pick(range(5))}, 1], rng_alg='philox')")
