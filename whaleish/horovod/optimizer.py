"""`DistributedOptimizer`: a Keras optimizer that applies the gradients of all ranks together."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import horovod.tensorflow as hvd
import keras

from whaleish.horovod.reduction import Reduction


class _Distributed:
    """What all distributed optimizers have."""

    _whaleish_reduction: Reduction

    def register_local_var(self, variable: Any) -> None:
        """The gradient of this variable is each rank's own."""
        self._whaleish_reduction.local.add(id(variable))


class _Reducing(_Distributed):
    """What is put before an optimizer's class. Gradients are reduced once, whoever applies them.

    That is done when an update is made, of what has been accumulated until then, and before clipping: so clipping by
    norm goes by the norm of the reduced gradients, the same on all ranks.
    """

    _whaleish_passes: int
    _whaleish_applied: Sequence[Any] = ()

    def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
        if isinstance(sys._getframe(1).f_locals.get("self"), keras.optimizers.LossScaleOptimizer):
            raise ValueError(
                "a LossScaleOptimizer round a DistributedOptimizer looks at the gradients of each rank by itself, and "
                "ranks would wait for each other where one of them overflows. Write DistributedOptimizer("
                "LossScaleOptimizer(optimizer)); under the policy mixed_float16 Keras puts one round it otherwise"
            )
        return super().apply(grads, trainable_variables)  # type: ignore[misc]

    def _backend_apply_gradients(self, grads: Any, trainable_variables: Any) -> None:
        self._whaleish_applied = list(trainable_variables)
        super()._backend_apply_gradients(grads, trainable_variables)  # type: ignore[misc]

    def _clip_gradients(self, grads: Any) -> Any:
        reduced = self._whaleish_reduction(grads, self._whaleish_applied)
        if self._whaleish_passes > 1:  # Keras has averaged them
            reduced = [None if gradient is None else gradient * self._whaleish_passes for gradient in reduced]
        return super()._clip_gradients(reduced)  # type: ignore[misc]


class _ReducingScaled(_Distributed):
    """The same for a `LossScaleOptimizer`: whether gradients are finite is asked of the reduced ones, by all ranks."""

    def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
        grads = list(grads)
        variables = grads if trainable_variables is None else trainable_variables
        return super().apply(self._whaleish_reduction(grads, list(variables)), trainable_variables)  # type: ignore[misc]


def distributed_optimizer(
    optimizer: keras.optimizers.Optimizer,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = hvd.Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: Any = hvd.Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: int | None = None,
    process_set: Any = hvd.global_process_set,
    scale_local_gradients: bool = True,
) -> keras.optimizers.Optimizer:
    """Has a Keras optimizer apply what the gradients of all ranks are together; arguments as Horovod's.

    The optimizer stays the same object, with its state, and saves as the plain one.

    Args:
      backward_passes_per_step: gradients are added up over so many calls, and reduced and applied at the last of them;
        averaged with `average_aggregated_gradients`. It is Keras's `gradient_accumulation_steps`.
      groups: in how many groups gradients are reduced; None: each by itself, which Horovod fuses as it can.

    Raises:
      TypeError: no Keras optimizer. ValueError: it is distributed already, or arguments do not go together.
    """
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise TypeError(
            f"DistributedOptimizer({type(optimizer).__name__}): give an optimizer of keras.optimizers; those of "
            "tf.compat.v1 and tf.keras.optimizers.legacy are not of Keras 3"
        )
    inner = getattr(optimizer, "inner_optimizer", None)
    if any(isinstance(one, _Distributed) for one in (optimizer, inner)):
        raise ValueError("DistributedOptimizer: this optimizer is distributed already, and gradients are averaged once")
    reduction = Reduction.of(
        groups,
        num_groups,
        op=op,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        predivide=gradient_predivide_factor,
        process_set=process_set,
        device=device_dense,
        scale_local=scale_local_gradients,
    )
    passes = _accumulate(inner or optimizer, backward_passes_per_step, average_aggregated_gradients)
    own = type(optimizer)
    mixin = _ReducingScaled if inner is not None else _Reducing
    # Of the same name and module, so that Keras saves it as what it was.
    made = type(own.__name__, (mixin, own), {"__module__": own.__module__, "__qualname__": own.__qualname__})
    optimizer.__class__ = made
    object.__setattr__(optimizer, "_whaleish_reduction", reduction)
    object.__setattr__(optimizer, "_whaleish_passes", passes)
    if name is not None:
        optimizer.name = name
    return optimizer


def _accumulate(optimizer: Any, passes: int, average: bool) -> int:
    """Has Keras accumulate; by how much the average is to be multiplied."""
    if not isinstance(passes, int) or passes < 1:
        raise ValueError(f"backward_passes_per_step={passes!r}: give an integer of at least 1")
    if passes == 1:
        return 1
    if optimizer.built or optimizer.gradient_accumulation_steps:
        raise ValueError(
            f"backward_passes_per_step={passes}: the optimizer has been built, or has gradient_accumulation_steps; "
            "give DistributedOptimizer a new one"
        )
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        raise ValueError(f"backward_passes_per_step={passes} does not go with a LossScaleOptimizer")
    optimizer.gradient_accumulation_steps = passes
    return 1 if average else passes
