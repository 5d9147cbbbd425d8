"""Concrete ops to run every declared signature on: one file per family, each with a list `CASES`."""

import importlib
import pkgutil

from tests.conformance.executor import Case

CASES: list[Case] = [
    case
    for module in sorted(pkgutil.iter_modules(__path__), key=lambda found: found.name)
    for case in importlib.import_module(f"{__name__}.{module.name}").CASES
]
