"""Train TensorFlow and Keras models on many devices with a few `with` lines."""

from whaleish import versions

versions.warn_at_import()

from whaleish.function import Function, function  # noqa: E402 - versions first: its advice beats an ImportError
from whaleish.planner import Plan, PlanError  # noqa: E402
from whaleish.scopes import ScopeError, auto, local_statistics, pipeline, replica, split, stage  # noqa: E402
from whaleish.world import init, is_chief, rank, size  # noqa: E402

__all__ = [
    "Function",
    "Plan",
    "PlanError",
    "ScopeError",
    "auto",
    "function",
    "init",
    "is_chief",
    "local_statistics",
    "pipeline",
    "rank",
    "replica",
    "size",
    "split",
    "stage",
]
