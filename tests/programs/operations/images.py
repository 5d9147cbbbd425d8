"""Convolutions, pooling and other operations on images."""

from __future__ import annotations

from tests.programs.draft import Draft
from tests.programs.operations.catalogue import listed, operation

PADDINGS = ["SAME", "VALID"]


def filled(d: Draft, least: int, most: int) -> str:
    """A value with elements: of none, TensorFlow's convolutions have gradients that are left over in memory."""
    return d.take(lambda value: least <= value.shape.rank <= most and value.shape.num_elements())


def image(d: Draft) -> str:
    """A value with four dims, or one with fewer made so."""
    x = filled(d, 0, 4)
    missing = 4 - len(d.shape(x))
    return d.add(f"tf.reshape({x}, {[*[1] * missing, *d.shape(x)]})") if missing else x


@operation
def new_image(d: Draft) -> None:
    """Pixels, by a product of what is there with new ones."""
    x = d.ranked(1)
    y = d.weight(d.pick(range(2, 5)), d.pick(range(2, 5)), d.pick(range(1, 4)))
    d.add(f"tf.tanh(tf.reshape({x}, [-1])[:5, None, None, None] + {y})")


def image_and_kernel(d: Draft, most: int) -> tuple[str, str]:
    """A kernel that fits into the image, with at most so many channels (or multiples of them)."""
    x = image(d)
    window = [min(d.pick([1, 2, 3]), length) for length in d.shape(x)[1:3]]
    return x, d.weight(*window, d.shape(x)[3], d.pick(range(1, most + 1)))


@operation
def conv2d(d: Draft) -> None:
    x, kernel = image_and_kernel(d, 5)
    d.add(f"tf.nn.conv2d({x}, {kernel}, {d.pick([1, 2])}, {d.pick(PADDINGS)!r})")


@operation
def depthwise(d: Draft) -> None:
    x, kernel = image_and_kernel(d, 3)
    d.add(f"tf.nn.depthwise_conv2d({x}, {kernel}, [1, 1, 1, 1], {d.pick(PADDINGS)!r})")


@operation
def conv2d_transpose(d: Draft) -> None:
    x = image(d)
    n, h, w, c = d.shape(x)
    out = d.pick(range(1, 4))
    d.add(f"tf.nn.conv2d_transpose({x}, {d.weight(2, 2, out, c)}, {[n, h * 2, w * 2, out]}, 2, 'SAME')")


@operation
def conv1d(d: Draft) -> None:
    x = filled(d, 3, 3)
    window = min(d.pick([1, 2, 3]), d.shape(x)[1])
    kernel = d.weight(window, d.shape(x)[2], d.pick(range(1, 6)))
    d.add(f"tf.nn.conv1d({x}, {kernel}, 1, {d.pick(PADDINGS)!r})")


@operation
def conv3d(d: Draft) -> None:
    x = filled(d, 5, 5)
    window = [min(d.pick([1, 2]), length) for length in d.shape(x)[2:4]]
    kernel = d.weight(1, *window, d.shape(x)[4], d.pick(range(1, 4)))
    d.add(f"tf.nn.conv3d({x}, {kernel}, [1, 1, 1, 1, 1], {d.pick(PADDINGS)!r})")


@operation
def pooling(d: Draft) -> None:
    x = image(d)
    window = min(d.pick([1, 2, 3]), *d.shape(x)[1:3])
    kind = d.pick(["avg", "max"])
    if kind == "max":
        d.distinct(x)
    d.add(f"tf.nn.{kind}_pool2d({x}, {window}, {d.pick([1, 2])}, {d.pick(PADDINGS)!r})")


@operation
def blocks(d: Draft) -> None:
    x = image(d)
    code = d.pick(listed("tf.nn.space_to_depth tf.nn.depth_to_space"))
    d.add(f"{code}({x}, 2)")


@operation
def to_batch(d: Draft) -> None:
    x = d.ranked(3, 4)
    if d.pick([True, False]):
        d.add(f"tf.space_to_batch({x}, [2, 1], [[0, {d.shape(x)[1] % 2}], [0, 0]])")
    else:
        d.add(f"tf.raw_ops.BatchToSpaceND(input={x}, block_shape=[2], crops=[[0, {d.pick([0, 1])}]])")


@operation
def resize(d: Draft) -> None:
    x = image(d)
    size = [d.pick(range(1, 6)), d.pick(range(1, 6))]
    options = "half_pixel_centers=True" if d.pick([True, False]) else "align_corners=True"
    d.add(f"tf.raw_ops.ResizeNearestNeighbor(images={x}, size={size}, {options})")


@operation
def patches(d: Draft) -> None:
    x = image(d)
    d.add(f"tf.image.extract_patches({x}, [1, 2, 2, 1], [1, 1, 1, 1], [1, 1, 1, 1], {d.pick(PADDINGS)!r})")


@operation
def batch_norm(d: Draft) -> None:
    x = d.ranked(2)
    axes = list(range(len(d.shape(x)) - 1))
    channels = d.shape(x)[-1]
    statistics = [d.add_list(f"tf.nn.moments({x}, {axes})"), d.weight(channels), d.weight(channels)]
    (mean, variance), offset, scale = statistics
    d.add(f"tf.nn.batch_normalization({x}, {mean}, {variance}, {offset}, {scale}, 0.01)")
