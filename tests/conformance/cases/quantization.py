"""Rounding to a few levels and back."""

import numpy as np

from tests.conformance.executor import Case

rng = np.random.default_rng(10)


def single(*shape: int) -> np.ndarray:
    return np.asarray(rng.normal(size=shape)).astype("float32")


LOW, HIGH = np.array(-0.8, "float32"), np.array(0.9, "float32")
LOWS, HIGHS = -np.abs(single(4)) - 0.1, np.abs(single(4)) + 0.1
BITS = np.array(6, "int32")

CASES: list[Case] = [
    Case("FakeQuantWithMinMaxArgs", (single(5, 4),), {"min": -0.8, "max": 0.9}),
    Case("FakeQuantWithMinMaxArgsGradient", (single(5, 4), single(5, 4)), {"min": -0.8, "max": 0.9}),
    Case("FakeQuantWithMinMaxVars", (single(5, 3, 2), LOW, HIGH)),
    Case("FakeQuantWithMinMaxVarsGradient", (single(5, 4), single(5, 4), LOW, HIGH)),
    *(
        Case("FakeQuantWithMinMaxVarsPerChannel", (single(*shape), LOWS, HIGHS))
        for shape in ((4,), (5, 4), (3, 2, 2, 4))
    ),
    *(
        Case("FakeQuantWithMinMaxVarsPerChannelGradient", (single(*shape), single(*shape), LOWS, HIGHS))
        for shape in ((4,), (5, 4), (3, 2, 2, 4))
    ),
    *(
        Case(f"QuantizeAndDequantize{version}", (single(5, 4), *limits, *bits), {"range_given": given, "axis": axis})
        for version, bits in (("V2", ()), ("V3", (BITS,)), ("V4", ()))
        for limits, given, axis in (
            ((LOW, HIGH), True, -1),
            ((LOWS, HIGHS), False, 1),
            ((LOW, HIGH), False, 0),
        )
    ),
    Case("QuantizeAndDequantizeV3", (single(5, 4), LOWS, HIGHS, BITS), {"axis": 1}),
    *(
        Case("QuantizeAndDequantizeV4Grad", (single(5, 4), single(5, 4), *limits), {"axis": axis})
        for limits, axis in (((LOW, HIGH), -1), ((LOWS, HIGHS), 1))
    ),
]
