"""Cells of recurrent layers; what a cell makes stands in for itself by numbers of the same shape."""

import numpy as np

from tests.conformance.executor import Case

rng = np.random.default_rng(12)
BATCH, STEPS, SIZE, CELLS = 5, 3, 2, 4


def some(*shape: int) -> np.ndarray:
    return rng.uniform(-0.9, 0.9, shape).astype("float32")


def states(count: int) -> list[np.ndarray]:
    return [some(BATCH, CELLS) for _ in range(count)]


def sequences(count: int) -> list[np.ndarray]:
    return [some(STEPS, BATCH, CELLS) for _ in range(count)]


X, XS = some(BATCH, SIZE), some(STEPS, BATCH, SIZE)
GRU = [some(SIZE + CELLS, 2 * CELLS), some(SIZE + CELLS, CELLS), some(2 * CELLS), some(CELLS)]
LSTM = [some(SIZE + CELLS, 4 * CELLS), *(some(CELLS) for _ in range(3)), some(4 * CELLS)]
LENGTH = np.array(STEPS, "int64")
PEEPHOLE = {"use_peephole": True}

CASES: list[Case] = [
    Case("GRUBlockCell", (X, *states(1), *GRU)),
    Case("GRUBlockCellGrad", (X, *states(1), *GRU, *states(4))),
    Case("LSTMBlockCell", (X, *states(2), *LSTM), PEEPHOLE),
    Case("LSTMBlockCellGrad", (X, *states(2), *LSTM, *states(8)), PEEPHOLE),
    Case("BlockLSTM", (LENGTH, XS, *states(2), *LSTM), PEEPHOLE),
    Case("BlockLSTMV2", (LENGTH, XS, *states(2), *LSTM)),
    Case("BlockLSTMGrad", (LENGTH, XS, *states(2), *LSTM, *sequences(9)), PEEPHOLE, tolerance=1e-4),
    Case("BlockLSTMGradV2", (LENGTH, XS, *states(2), *LSTM, *sequences(9)), {"use_peephole": False}, tolerance=1e-4),
]
