"""`DistributedGradientTape`: a tape whose gradients are those of all ranks together."""

from __future__ import annotations

from typing import Any

import horovod.tensorflow as hvd
import tensorflow as tf

from whaleish.horovod.reduction import Reduction


class _Reducing:
    """What is put before a tape's class."""

    _whaleish_reduction: Reduction

    def gradient(self, target: Any, sources: Any, *args: Any, **kwargs: Any) -> Any:
        """As `tf.GradientTape.gradient`, reduced over ranks."""
        gradients = super().gradient(target, sources, *args, **kwargs)  # type: ignore[misc]
        flat = self._whaleish_reduction(tf.nest.flatten(gradients), tf.nest.flatten(sources))
        return tf.nest.pack_sequence_as(gradients, flat)

    def register_local_source(self, source: Any) -> None:
        """The gradient of this variable is each rank's own."""
        self._whaleish_reduction.local.add(id(source))


def distributed_gradient_tape(
    gradtape: tf.GradientTape,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = hvd.Compression.none,
    sparse_as_dense: bool = False,
    op: Any = hvd.Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | None = None,
    process_set: Any = hvd.global_process_set,
    scale_local_gradients: bool = True,
) -> tf.GradientTape:
    """Has a tape give the gradients of all ranks together; arguments as Horovod's. It stays the same tape.

    Raises:
      ValueError: it is distributed already, or arguments do not go together.
    """
    if isinstance(gradtape, _Reducing):
        raise ValueError("DistributedGradientTape: this tape is distributed already, and gradients are averaged once")
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
    own = type(gradtape)
    gradtape.__class__ = type(own.__name__, (_Reducing, own), {})
    gradtape._whaleish_reduction = reduction
    return gradtape
