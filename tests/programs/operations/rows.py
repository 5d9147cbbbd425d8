"""What is done with rows of logits: softmax, losses, normalisation, attention."""

from __future__ import annotations

from tests.programs.draft import Draft
from tests.programs.operations.catalogue import listed, operation


@operation
def softmax(d: Draft) -> None:
    x = d.ranked(1)
    axis = d.pick([-1, -1, d.axis(x)])
    d.add(f"{d.pick(listed('tf.nn.softmax tf.nn.log_softmax'))}({x}, {axis})")


@operation
def dense_loss(d: Draft) -> None:
    x = d.ranked(2)
    labels = f"tf.nn.softmax({d.weight(*d.shape(x))})"
    d.add(f"tf.nn.softmax_cross_entropy_with_logits({labels}, {x})")


@operation
def sparse_loss(d: Draft) -> None:
    x = d.ranked(2)
    *batch, classes = d.shape(x)
    labels = f"whole_numbers({', '.join(map(str, (d.pick(range(8)), classes, *batch)))})"
    d.add(f"tf.nn.sparse_softmax_cross_entropy_with_logits({labels}, {x})")


@operation
def sigmoid_loss(d: Draft) -> None:
    x = d.off(d.take(), 0.0)
    d.add(f"tf.nn.sigmoid_cross_entropy_with_logits(tf.sigmoid({d.weight(*d.shape(x))}), {x})")


@operation
def classifier(d: Draft) -> None:
    """A product with a head, and its loss."""
    x = d.ranked(2, 2)
    rows, features = d.shape(x)
    classes = d.pick(range(2, 9))
    logits = d.add(f"tf.matmul({x}, {d.weight(features, classes)})")
    labels = f"whole_numbers({d.pick(range(8))}, {classes}, {rows})"
    d.add(f"tf.nn.sparse_softmax_cross_entropy_with_logits({labels}, {logits})")


@operation
def layer_norm(d: Draft) -> None:
    x = d.ranked(2)
    centred = d.add(f"{x} - tf.reduce_mean({x}, -1, keepdims=True)")
    d.add(f"{centred} * tf.math.rsqrt(tf.reduce_mean(tf.square({centred}), -1, keepdims=True) + 0.01)")


@operation
def unit_rows(d: Draft) -> None:
    x = d.ranked(1)
    d.add(f"tf.math.l2_normalize({x}, {d.axis(x)}, 0.001)")


@operation
def attention(d: Draft) -> None:
    q = d.ranked(3, 4)
    k, v = d.weight(*d.shape(q)), d.weight(*d.shape(q))
    weights = d.add(f"tf.nn.softmax(tf.matmul({q}, {k}, transpose_b=True))")
    d.add(f"tf.matmul({weights}, {v})")
