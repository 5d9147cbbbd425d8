"""Train TensorFlow and Keras models on many devices with a few `with` lines."""

import importlib
from typing import Any

from whaleish import versions

versions.warn_at_import()

# Where each public name is. They are imported at their first use: TensorFlow takes seconds, which the command line need
# not wait for, and where it is missing or of another version, that is said before an ImportError can be.
_HOMES = {
    "DisagreementError": "whaleish.agreement",
    "Function": "whaleish.step",
    "Plan": "whaleish.planner",
    "PlanError": "whaleish.planner",
    "ScopeError": "whaleish.scopes",
    "accumulate": "whaleish.scopes",
    "auto": "whaleish.scopes",
    "checkpoint": "whaleish.checkpoint",
    "deferred": "whaleish.state",
    "distribute_dataset": "whaleish.dataset",
    "function": "whaleish.step",
    "gather": "whaleish.state",
    "half": "whaleish.scopes",
    "init": "whaleish.world",
    "is_chief": "whaleish.world",
    "keras": "whaleish.keras",
    "layout": "whaleish.stated",
    "local_statistics": "whaleish.scopes",
    "offload": "whaleish.scopes",
    "peak_memory": "whaleish.measured",
    "pipeline": "whaleish.scopes",
    "rank": "whaleish.world",
    "recompute": "whaleish.scopes",
    "replica": "whaleish.scopes",
    "size": "whaleish.world",
    "split": "whaleish.scopes",
    "stage": "whaleish.scopes",
    "trace": "whaleish.tracing",
}

__all__ = [*_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'whaleish' has no attribute {name!r}; it has {', '.join(_HOMES)}")
    versions.require()
    home = importlib.import_module(_HOMES[name])
    found = globals()[name] = home if home.__name__ == f"{__name__}.{name}" else getattr(home, name)
    return found


def __dir__() -> list[str]:
    return sorted(_HOMES)
