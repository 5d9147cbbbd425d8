"""Cells of recurrent layers as single kernels, whole sequences of them, and their gradients.

The batch may be split: samples do not see each other. Gradients of weights are then sums over the parts of the batch.
"""

from __future__ import annotations

from collections.abc import Sequence

from whaleish.rules.forms import same, unless_empty
from whaleish.rules.rule import OpView, Signature, registry
from whaleish.sbp import B, P, S, Sbp


def _batch(op: OpView, states: Sequence[int], sequences: Sequence[int], outputs: Sequence[Sbp]) -> list[Signature]:
    """Inputs that are [N, ..] and those that are [T, N, ..]; the rest are weights."""
    inputs = [S(0) if i in states else S(1) if i in sequences else B for i in range(len(op.inputs))]
    return [Signature(tuple(inputs), tuple(outputs))]


@registry.register("GRUBlockCell", lower=unless_empty(same))
def gru_cell(op: OpView) -> list[Signature]:
    """x and h, then weights -> gates and the new h, all [N, ..]."""
    return _batch(op, (0, 1), (), [S(0)] * 4)


@registry.register("GRUBlockCellGrad", lower=unless_empty(same))
def gru_cell_gradient(op: OpView) -> list[Signature]:
    """x, h, four weights, gates, gradient of h -> gradients of x, h and the gates."""
    return _batch(op, (0, 1, 6, 7, 8, 9), (), [S(0)] * 4)


@registry.register("LSTMBlockCell", lower=unless_empty(same))
def lstm_cell(op: OpView) -> list[Signature]:
    """x, c and h, then weights -> gates, states and the new h, all [N, ..]."""
    return _batch(op, (0, 1, 2), (), [S(0)] * 7)


@registry.register("LSTMBlockCellGrad", lower=unless_empty(same))
def lstm_cell_gradient(op: OpView) -> list[Signature]:
    """x, c, h, five weights, seven made by the cell, two gradients -> of c and the gates, and of three weights."""
    return _batch(op, (0, 1, 2, *range(8, 16)), (), [S(0), S(0), P, P, P])


@registry.register("BlockLSTM", "BlockLSTMV2", lower=unless_empty(same))
def lstm(op: OpView) -> list[Signature]:
    """A length, x [T, N, ..], c and h, then weights -> gates, states and h of every step."""
    return _batch(op, (2, 3), (1,), [S(1)] * 7)


@registry.register("BlockLSTMGrad", "BlockLSTMGradV2", lower=unless_empty(same))
def lstm_gradient(op: OpView) -> list[Signature]:
    """A length, x, c, h, five weights, seven made, two gradients -> of x, c and h, and of five weights."""
    return _batch(op, (2, 3), (1, *range(9, 18)), [S(1), S(0), S(0), P, P, P, P, P])
