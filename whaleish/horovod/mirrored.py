"""What a mirrored module has besides its own: Horovod's names, and those that say that they are not supported."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

UNSUPPORTED = {
    "elastic": "ranks that come and go need Horovod's own module and launcher",
    "SyncBatchNormalization": "of Keras 2; with wh.keras.distribute batch norms take the statistics of the whole batch",
    "PartialDistributedOptimizer": "give DistributedOptimizer(...).register_local_var(variable)",
    "PartialDistributedGradientTape": "give DistributedGradientTape(...).register_local_source(variable)",
    "broadcast_global_variables": "TensorFlow 2 has no global variables; give broadcast_variables a list",
    "BroadcastGlobalVariablesHook": "of TensorFlow 1; give broadcast_variables a list",
    "DistributedAdasumOptimizer": "give DistributedOptimizer(op=Average)",
    "load_model": "load it with keras.models.load_model, and wrap its optimizer with DistributedOptimizer",
}


def rest_of(module: ModuleType, name: str) -> Callable[[str], Any]:
    """The `__getattr__` of a module that mirrors another."""

    def found(attribute: str) -> Any:
        if attribute in UNSUPPORTED:
            raise NotImplementedError(f"{name}.{attribute} is not supported: {UNSUPPORTED[attribute]}")
        try:
            return getattr(module, attribute)
        except AttributeError:
            raise AttributeError(f"module {name!r} has no attribute {attribute!r}") from None

    return found


def names(module: ModuleType, own: Mapping[str, Any]) -> list[str]:
    """The `__dir__` of a module that mirrors another."""
    return sorted({*(name for name in vars(module) if not name.startswith("_")), *own})
