"""Elementwise ops."""

import numpy as np
from tests.conformance.executor import Case

CASES = [Case("AddV2", (np.ones((5, 3)), np.ones((3,))))]
