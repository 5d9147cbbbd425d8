"""Where a shape is not known before running, rules offer nothing that would need it, and never stumble."""

from dataclasses import replace

import pytest

from tests.conformance.cases import CASES
from tests.conformance.executor import Case, registry
from whaleish.rules.rule import TensorSpec


@pytest.mark.parametrize("case", CASES, ids=str)
def test_inputs_of_unknown_shape(case: Case) -> None:
    op = case.view()
    for place, spec in enumerate(op.inputs):
        unknown = (*op.inputs[:place], TensorSpec(None, spec.dtype), *op.inputs[place + 1 :])
        for signature in registry.signatures(replace(op, inputs=unknown)):
            assert not signature.inputs[place].is_split
            assert len(signature.inputs) == len(op.inputs)
