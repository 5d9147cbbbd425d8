"""Assignments to variables, in the middle of a program."""

from __future__ import annotations

from tests.programs.draft import Draft
from tests.programs.operations.catalogue import listed, operation


def variable(d: Draft, least: int = 0) -> str:
    return d.pick([name for name in d.variables if len(d.shape(name)) >= least])


@operation
def assign(d: Draft) -> None:
    """What is read later is the new value."""
    name = variable(d)
    value = d.weight(*d.shape(name))
    code = d.pick(
        listed("{0}.assign(0.9*{0}+0.1*tf.tanh({1})) {0}.assign_add(0.1*tf.sin({1})) {0}.assign_sub(0.1*{1})")
    )
    d.assign(code.format(name, value))


@operation
def scatter(d: Draft) -> None:
    """Some rows of a variable change."""
    name = variable(d, 1)
    rows = d.shape(name)[0]
    chosen = d.order(rows)[: d.pick(range(1, rows + 1))]
    update = f"0.5 * tf.tanh({d.weight(len(chosen), *d.shape(name)[1:])})"
    code = d.pick(
        [
            "{0}.scatter_add(tf.IndexedSlices({2}, tf.constant({1})))",
            "{0}.scatter_sub(tf.IndexedSlices({2}, tf.constant({1})))",
            "{0}.scatter_update(tf.IndexedSlices({2}, tf.constant({1})))",
            "{0}.scatter_max(tf.IndexedSlices({2}, tf.constant({1})))",
            "{0}.scatter_mul(tf.IndexedSlices(1.0 + {2}, tf.constant({1})))",
            "{0}.scatter_nd_add({3}, {2})",
            "{0}.scatter_nd_update({3}, {2})",
        ]
    )
    d.assign(code.format(name, chosen, update, [[row] for row in chosen]))
